// Keeps the page fresh, switches the theme, and sends a query by Ctrl + Enter. Without it everything works but by reloading.
(function () {
  "use strict";
  const root = document.documentElement;
  const main = document.getElementById("main");

  // Theme

  const button = document.getElementById("theme");
  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  function tell() {
    button.setAttribute("aria-pressed", String(isDark()));
    button.setAttribute("aria-label", isDark() ? "Dark theme is on" : "Dark theme is off");
  }
  if (button) {
    button.hidden = false;
    tell();
    button.addEventListener("click", function () {
      root.dataset.theme = isDark() ? "light" : "dark";
      try { localStorage.setItem("modak-theme", root.dataset.theme); } catch (error) { /* not kept, then */ }
      tell();
    });
  }

  // Fresh figures: the same page again, and every part of it that changed. Focus and scrolling stay where they are.

  const announce = document.getElementById("announce");
  const offline = document.getElementById("offline");
  function said(part) {
    return Array.from(part.querySelectorAll("[data-say]"), (one) => one.dataset.say);
  }
  function places(part) {
    return Array.from(part.querySelectorAll(".scroll"));
  }
  function replace(part, fresh) {
    const focus = part.contains(document.activeElement) ? document.activeElement : null;
    const scrolled = places(part).map((one) => [one.scrollTop, one.scrollLeft]);
    const order = focus ? Array.from(part.querySelectorAll("a, [tabindex]")).indexOf(focus) : -1;
    part.replaceWith(fresh);
    places(fresh).forEach((one, place) => { if (scrolled[place]) [one.scrollTop, one.scrollLeft] = scrolled[place]; });
    if (order >= 0) {
      const same = fresh.querySelectorAll("a, [tabindex]")[order];
      if (same) same.focus({ preventScroll: true });
    }
  }
  function refresh(page) {
    const news = [];
    for (const part of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(part.id);
      if (!fresh || fresh.outerHTML === part.outerHTML) continue;
      const before = said(part);
      news.push(...said(fresh).filter((one) => !before.includes(one)));
      replace(part, document.adoptNode(fresh));
    }
    if (news.length) announce.textContent = news.join(". ");
  }
  let waiting = 0;
  async function look() {
    if (document.hidden) return;
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      if (answer.redirected) { location.reload(); return; }
      if (answer.ok) refresh(new DOMParser().parseFromString(await answer.text(), "text/html"));
      offline.hidden = answer.ok;
    } catch (error) {
      offline.hidden = false;
    }
  }
  function keepLooking(milliseconds) {
    async function again() {
      await look();
      waiting = setTimeout(again, milliseconds);
    }
    waiting = setTimeout(again, milliseconds);
    document.addEventListener("visibilitychange", function () {
      if (!document.hidden) { clearTimeout(waiting); again(); }
    });
  }
  if (main && main.dataset.poll) keepLooking(Number(main.dataset.poll));
  if (main && "retry" in main.dataset) setTimeout(() => location.reload(), 2 * Number(main.dataset.retry));

  // Forms

  const query = document.getElementById("sql");
  if (query) {
    query.addEventListener("keydown", function (event) {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        query.form.querySelector("button[value=run]").click();
      }
    });
  }
  const refused = document.getElementById("refused") || document.getElementById("failed");
  if (refused) { refused.tabIndex = -1; refused.focus({ preventScroll: false }); }
})();
