"""Tools that use the core and that the core never imports: boards, explanations of files, services, the browser page, the C++ runner."""
