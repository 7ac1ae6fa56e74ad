"""Chat templates: the sandbox that renders them, with every operation charged and every text of the user marked."""
