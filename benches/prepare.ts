import { createHash } from 'node:crypto';
import type { OutgoingHttpHeaders } from 'node:http';

interface Order {
  id: string;
  customer?: { name: string; country: string };
  lines: ReadonlyArray<{ sku: string; quantity: number; cents: number }>;
  placed: string;
}

type Totals = Record<string, { orders: number; cents: number }>;

enum Rounding {
  Down,
  Up,
  Bankers,
}

const headers: OutgoingHttpHeaders = { accept: 'application/json' };

function rounded(value: number, how: Rounding = Rounding.Bankers): number {
  const floor = Math.floor(value);
  const rest = value - floor;
  switch (how) {
    case Rounding.Down:
      return floor;
    case Rounding.Up:
      return rest > 0 ? floor + 1 : floor;
    default:
      return rest > 0.5 || (rest === 0.5 && floor % 2 !== 0) ? floor + 1 : floor;
  }
}

const isOrder = (value: unknown): value is Order =>
  typeof value === 'object' && value !== null && 'lines' in value && Array.isArray((value as Order).lines);

async function load(url: string, signal?: AbortSignal): Promise<Order[]> {
  const response = await fetch(url, { headers: headers as Record<string, string>, signal });
  if (!response.ok) {
    throw new Error(`orders could not be read: ${response.status} ${response.statusText}`);
  }
  const body = (await response.json()) as { orders?: unknown[] };
  return (body.orders ?? []).filter(isOrder);
}

class Summary {
  readonly #totals: Totals = Object.create(null);

  constructor(private readonly rate: number) {}

  add({ customer, lines }: Order): this {
    const country = customer?.country ?? 'unknown';
    const cents = lines.reduce((sum, { quantity, cents: each }) => sum + quantity * each, 0);
    const total = this.#totals[country] ?? { orders: 0, cents: 0 };
    this.#totals[country] = total;
    total.orders += 1;
    total.cents += rounded(cents * this.rate);
    return this;
  }

  get totals(): Totals {
    return { ...this.#totals };
  }
}

export default async function execute({ url, rate = 1 }: { url: string; rate?: number }) {
  const orders = await load(url, AbortSignal.timeout(5_000));
  const summary = orders.reduce((all, order) => all.add(order), new Summary(rate));
  const digest = createHash('sha256').update(JSON.stringify(summary.totals)).digest('hex');
  return { count: orders.length, totals: summary.totals, digest } satisfies Record<string, unknown>;
}
