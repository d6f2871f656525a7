"""Pages for people: what goes on, what needs a decision, and the levers to steer by."""
