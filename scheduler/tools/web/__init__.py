"""A bundle in a browser: a small server, and a page that runs the bundle's plan on WebAssembly and WebGPU."""
