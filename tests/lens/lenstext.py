"""What the tests of the lens look at."""

from __future__ import annotations

# Markup, quotes, line ends and characters of several bytes: all of it must arrive as text.
TEXT = "the anchor <b>rests</b> & the state </script><script>document.title='taken'</script> moves\n“again” and again ."
LOOPS = 12


def until(page, expression: str) -> None:
    """Wait until an expression is true in a page. (Playwright's own waiting evaluates text, which the page forbids.)"""
    for _ in range(2400):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"never true: {expression}")
