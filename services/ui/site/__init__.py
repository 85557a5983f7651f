"""What all pages share: who gets in, the words of both languages, the look, and other services over HTTP."""
