// A package registry on the loopback address, just large enough for npm: packages are folders written as objects.

import { createHash } from 'node:crypto';
import { createServer } from 'node:http';
import { gzipSync } from 'node:zlib';

const BLOCK_BYTES = 512;

/** One file of a ustar archive. */
function tarEntry(name, content) {
  const body = Buffer.from(content);
  const header = Buffer.alloc(BLOCK_BYTES);
  const octal = (value, digits) => `${value.toString(8).padStart(digits, '0')}\0`;
  header.write(name, 0);
  header.write(octal(0o644, 7), 100);
  header.write(octal(0, 7), 108);
  header.write(octal(0, 7), 116);
  header.write(octal(body.length, 11), 124);
  header.write(octal(0, 11), 136);
  header.fill(' ', 148, 156);
  header.write('0', 156);
  header.write('ustar\x0000', 257, 'latin1');
  const checksum = header.reduce((sum, byte) => sum + byte, 0);
  header.write(`${octal(checksum, 6)} `, 148);
  return Buffer.concat([header, body, Buffer.alloc(-body.length & (BLOCK_BYTES - 1))]);
}

function pack(files) {
  const entries = Object.entries(files).map(([name, content]) => tarEntry(`package/${name}`, content));
  return gzipSync(Buffer.concat([...entries, Buffer.alloc(2 * BLOCK_BYTES)]));
}

function digest(algorithm, encoding, bytes) {
  return createHash(algorithm).update(bytes).digest(encoding);
}

/** All versions of one package, packed. */
function publish(name, versions) {
  return Object.entries(versions).map(([version, { 'package.json': extra, ...files }]) => {
    const manifest = { name, version, main: 'index.js', ...extra };
    return { version, manifest, archive: pack({ 'package.json': JSON.stringify(manifest), ...files }) };
  });
}

function document(name, releases, base) {
  const versions = releases.map(({ version, manifest, archive }) => {
    const dist = {
      tarball: `${base}/${name}/-/${version}.tgz`,
      shasum: digest('sha1', 'hex', archive),
      integrity: `sha512-${digest('sha512', 'base64', archive)}`,
    };
    return [version, { ...manifest, dist }];
  });
  return { name, 'dist-tags': { latest: releases.at(-1).version }, versions: Object.fromEntries(versions) };
}

/**
 * Starts one.
 * @param packages `{ name: { version: { file: text, 'package.json'?: object } } }`, versions in ascending order
 * @returns `{ url, hits, requests, publish, publishArchive, close }`; `hits` counts the archives handed out, by name; `requests` has the
 *   path and the credentials of each request; `publish(name, version,
 *   files)` adds a version to a package; `publishArchive(manifest, archive)` a packed one
 */
export async function startRegistry(packages) {
  const published = new Map(Object.entries(packages).map(([name, versions]) => [name, publish(name, versions)]));
  const hits = {};
  const requests = [];
  const server = createServer((request, response) => {
    requests.push({ url: request.url, authorization: request.headers.authorization });
    const base = `http://127.0.0.1:${server.address().port}`;
    const [name, file] = decodeURIComponent(request.url.slice(1)).split('/-/');
    const releases = published.get(name);
    const release = releases?.find(({ version }) => file === `${version}.tgz`);
    if (release) {
      hits[name] = (hits[name] ?? 0) + 1;
      response.end(release.archive);
    } else if (releases && file === undefined) {
      response.setHeader('content-type', 'application/json').end(JSON.stringify(document(name, releases, base)));
    } else {
      response.writeHead(404, { 'content-type': 'application/json' }).end('{"error":"not found"}');
    }
  });
  await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
  server.unref();
  return {
    url: `http://127.0.0.1:${server.address().port}/`,
    hits,
    requests,
    publish: (name, version, files) => {
      published.set(name, [...(published.get(name) ?? []), ...publish(name, { [version]: files })]);
    },
    publishArchive: (manifest, archive) => {
      const { name, version } = manifest;
      published.set(name, [...(published.get(name) ?? []), { version, manifest, archive }]);
    },
    close: () => new Promise((closed) => server.close(closed).closeAllConnections()),
  };
}

/** Starts one and points npm at it, by the variable that a server would use. To be called before the first call. */
export async function useRegistry(packages) {
  const registry = await startRegistry(packages);
  process.env.npm_config_registry = registry.url;
  return registry;
}
