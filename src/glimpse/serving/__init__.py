"""OpenAI's formats on top of ``LLM``: what the server and batch jobs share."""
