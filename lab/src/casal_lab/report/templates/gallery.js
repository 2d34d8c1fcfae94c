"use strict";

// One problem at a time. Without this script all of them are shown.
{
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const show = (chosen) => {
    for (const tab of tabs) {
      tab.setAttribute("aria-selected", String(tab === chosen));
      tab.tabIndex = tab === chosen ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = tab !== chosen;
    }
  };
  tabs.forEach((tab, k) => {
    tab.addEventListener("click", () => show(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      const next = tabs[(k + step + tabs.length) % tabs.length];
      show(next);
      next.focus();
    });
  });
  const asked = () => tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash);
  addEventListener("hashchange", () => asked() && show(asked()));
  if (tabs.length) show(asked() || tabs[0]);

  // In a frame: no title, and as tall as it needs to be, where the page around it lets us.
  if (window !== window.parent) {
    document.documentElement.classList.add("framed");
    const fit = () => {
      try {
        if (window.frameElement) window.frameElement.style.height = `${document.body.scrollHeight + 4}px`;
      } catch {
        // a page of another origin: its frame scrolls
      }
    };
    new ResizeObserver(fit).observe(document.body);
  }
}
