// Before anything is painted: the theme somebody chose here, or else the system's.
(function () {
  "use strict";
  try {
    const chosen = localStorage.getItem("modak-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch (error) { /* storage may be forbidden; the system's theme stays */ }
})();
