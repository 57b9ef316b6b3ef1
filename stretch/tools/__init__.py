"""Tools that use the core, and that the core never imports: boards, phones, the browser page, foreign files, torch and C++ code."""
