"""What is built on the core and that the core never imports: code of networks, phones, profiles of machines, reports."""
