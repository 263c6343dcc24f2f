"use strict";
// Parts of a page that change are sent by the server, escaped and rendered (server-sent events); this file puts them into their places.
(() => {
  const places = new Map();
  for (const each of document.querySelectorAll("[data-live]")) places.set(each.dataset.live, each);
  const state = document.getElementById("live");
  let stream = null;

  const say = (text, title) => { if (state) { state.textContent = text; state.title = title || ""; } };

  function follow() {
    if (stream || !places.size || document.hidden) return;
    stream = new EventSource(location.pathname + location.search);
    stream.onopen = () => say("● live", "Numbers on this page follow the server");
    stream.onerror = () => {
      if (stream && stream.readyState === EventSource.CLOSED) {
        stream = null;
        say("○ not live", "Too many pages are followed already, or you are logged out: load the page again");
      } else say("○ connecting");
    };
    stream.addEventListener("gone", (event) => { leave(); say("○ ended: " + event.data, event.data); });
    for (const [name, place] of places) stream.addEventListener(name, (event) => put(place, event.data));
  }

  function put(place, html) {
    // Neither what somebody types or selects nor what has the focus is taken away.
    const selection = getSelection();
    const busy = place.contains(document.activeElement) && document.activeElement !== document.body;
    if (busy && !document.activeElement.href) return;
    if (selection && !selection.isCollapsed && place.contains(selection.anchorNode)) return;
    const focused = busy ? document.activeElement.getAttribute("href") : null;
    place.innerHTML = html;
    if (focused) for (const link of place.querySelectorAll("a[href]")) if (link.getAttribute("href") === focused) { link.focus(); break; }
  }

  function leave() {
    if (stream) { stream.close(); stream = null; }
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? leave() : follow()));
  addEventListener("pagehide", leave);
  addEventListener("pageshow", follow);

  // Keys: "/" goes to the field for a topic, "g" and a letter to a page.
  let before = "";
  const pages = { o: "/console/", t: "/console/tenants", p: "/console/pipelines", r: "/console/regions" };
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (event.key === "Escape" && typing) event.target.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      document.getElementById("go")?.focus();
    } else if (before === "g" && pages[event.key]) location.assign(pages[event.key]);
    before = event.key;
  });

  // Where a choice of a list is the whole form, choosing sends it.
  for (const each of document.querySelectorAll("select[data-submit]")) each.addEventListener("change", () => each.form.submit());
})();
