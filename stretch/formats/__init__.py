"""Files in formats that runtimes read, written node by node; which operator becomes which is told by `stretch.operators`."""
