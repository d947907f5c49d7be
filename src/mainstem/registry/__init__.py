"""What is known of schemas: their forms, which may follow which, and rows of one in the shape of another."""
