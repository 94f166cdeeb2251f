// Deliberately wrong: the check of lines must name this file, because its only line goes on after the hundred and twentieth character.
