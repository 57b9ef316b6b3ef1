"""Any files in turns: what they are, what they ran on, how sure their times are, and a record that others can check."""
