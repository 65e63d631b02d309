// Owns the language that charts are written in: uPlot reads the browser's as it loads, and Intl refuses what Chromium reports under LANG=C.UTF-8.
const FALLBACK = "en-US";

/** Whether Intl knows the language. */
function isKnown(language) {
  try {
    return Intl.NumberFormat.supportedLocalesOf(language).length > 0;
  } catch {
    return false;
  }
}

if (!isKnown(navigator.language)) {
  Object.defineProperty(navigator, "language", { value: FALLBACK, configurable: true });
}
