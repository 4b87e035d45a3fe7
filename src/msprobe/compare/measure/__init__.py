"""How far two recorded values are apart."""
