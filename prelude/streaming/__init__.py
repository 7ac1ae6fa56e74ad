"""Text as it arrives: tokens to characters, stop strings, and the chunks a reader gets. No request enters."""
