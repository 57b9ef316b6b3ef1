// Tables that are wider than the page can be scrolled by keyboard, and each copy button's bar has a name of its own.
document$.subscribe(() => {
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap")) {
    each.tabIndex = 0;
  }
  const name = () => document.querySelectorAll(".md-code__nav").forEach((bar, i) => bar.setAttribute("aria-label", `Code block ${i + 1}`));
  new MutationObserver(name).observe(document.querySelector("main"), { childList: true, subtree: true });
  name();
});
