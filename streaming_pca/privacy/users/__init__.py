"""Table of users, where the user is the unit of privacy."""
