"""What is looked for in prompts and answers."""
