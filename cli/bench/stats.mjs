// Figures out of samples. Pure.

/** The value that the share `q` of the sorted samples does not exceed (nearest rank): always one that was measured. */
export function percentile(sorted, q) {
  if (sorted.length === 0) throw new RangeError('no samples: nothing was measured');
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(q * sorted.length) - 1))];
}

export function sorted(samples) {
  for (const sample of samples) {
    if (!Number.isFinite(sample)) throw new TypeError(`a sample must be a number, got ${sample}`);
  }
  return Float64Array.from(samples).sort();
}

export function median(samples) {
  return percentile(sorted(samples), 0.5);
}

/** @returns {{ n: number, min: number, p50: number, p99: number, max: number, mean: number }} */
export function summary(samples) {
  const all = sorted(samples);
  return {
    n: all.length,
    min: percentile(all, 0),
    p50: percentile(all, 0.5),
    p99: percentile(all, 0.99),
    max: percentile(all, 1),
    mean: all.reduce((sum, value) => sum + value, 0) / all.length,
  };
}

/** Three significant digits, and no exponent. */
export function short(value) {
  if (!Number.isFinite(value)) return String(value);
  const magnitude = Math.abs(value);
  if (magnitude >= 100) return value.toFixed(0);
  if (magnitude >= 10) return value.toFixed(1);
  return value.toFixed(magnitude >= 1 || value === 0 ? 2 : 3);
}
