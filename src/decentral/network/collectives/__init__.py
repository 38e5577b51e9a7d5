"""All-reduces between processes, made of messages from one to another."""
