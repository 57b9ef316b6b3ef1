"""What is built on the core and that the core never imports: boards, explanations of files, services, timing in turns, simulations, the C++ runner."""
