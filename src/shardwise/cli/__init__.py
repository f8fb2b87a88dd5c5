"""The command line. Importing it loads typer and nothing heavier; commands import what they need."""
