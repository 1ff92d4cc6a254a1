// Light, dark, or as the system has it; and colours for what is drawn on a canvas.

const HUES = [212, 32, 140, 275, 185, 330, 85, 245, 55, 305];
const themeWatchers = new Set();

function setTheme(value) {
  if (value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = value;
  for (const watcher of themeWatchers) watcher();
}

function startTheme() {
  let kept = "system";
  try {
    kept = localStorage.getItem("meshsim-theme") || "system";
  } catch { /* a page opened from a file may have no storage */ }
  for (const input of document.querySelectorAll("input[name=theme]")) {
    input.checked = input.value === kept;
    input.addEventListener("change", () => {
      setTheme(input.value);
      try {
        localStorage.setItem("meshsim-theme", input.value);
      } catch { /* as above */ }
    });
  }
  setTheme(kept);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => themeWatchers.forEach((watcher) => watcher()));
}

function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

// The value of a colour variable as a canvas understands it.
function canvasColours(names) {
  const probe = el("span", { hidden: true });
  document.body.append(probe);
  const found = {};
  for (const name of names) {
    probe.style.color = `var(--${name})`;
    found[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return found;
}

const hueOf = (number) => HUES[number % HUES.length];
