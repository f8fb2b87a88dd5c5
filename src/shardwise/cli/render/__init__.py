"""What people read. Every renderer takes the JSON document of its command and returns rich renderables,
so what is printed can never say more than what ``--json`` says."""
