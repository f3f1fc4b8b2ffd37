"""What the gateway's service tests stand on: a real Postgres, a fake translator, guards."""
