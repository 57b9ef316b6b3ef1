// Tables that are wider than the page are scrolled by the keyboard, too.
document$.subscribe(() => {
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap")) {
    each.tabIndex = 0;
  }
});
