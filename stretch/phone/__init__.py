"""A phone behind `adb`: what a bundle takes there, signature by signature and processor by processor, as measurements for a fit.

`adb` calls the program of that name, `benchmark` has the command lines of LiteRT's `benchmark_model` and reads what it
says, `signatures` says what is measured where, `measure` does it, `table` keeps the times as `stretch profile --fit` reads them.
"""
