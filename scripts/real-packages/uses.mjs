// Uses of real npm packages, each the body of a function tool. `npm run packages:real` runs them in plain Node and in the sandbox and
// compares the results.
//
// An entry is `[package, body]` or `[package, body, options]`. The body may use `require`, `import()` and `args.url` (a small
// HTTP server on the loopback address: GET /json, POST /echo, POST /v1/chat/completions, POST /v1/messages). Options:
//   with     further dependencies, name → range
//   range    the range to install (default: latest)
//   differs  true: two calls must return different results (ids, random values), so plain Node is compared by type and length only

export const USES = [
  // General utilities
  ['lodash', `return require('lodash').groupBy([1, 2, 3, 4], (n) => (n % 2 ? 'odd' : 'even'));`],
  ['underscore', `return require('underscore').chunk([1, 2, 3, 4, 5], 2);`],
  ['ramda', `const R = require('ramda'); return R.pipe(R.map(R.multiply(2)), R.sum)([1, 2, 3]);`],
  ['rambda', `const R = await import('rambda'); return R.pipe([1, 2, 3], R.map((x) => x * 2));`],
  ['immer', `const { produce } = require('immer'); return produce({ a: [1] }, (d) => { d.a.push(2); });`],
  ['immutable', `const { Map } = require('immutable'); return Map({ a: 1 }).set('b', 2).toJS();`],
  [
    'rxjs',
    `const { from, map, toArray, lastValueFrom } = require('rxjs'); return lastValueFrom(from([1, 2, 3]).pipe(map((x) => x * 3), toArray()));`,
  ],
  ['async', `const { mapLimit } = require('async'); return mapLimit([1, 2, 3], 2, async (x) => x + 1);`],
  ['bluebird', `return require('bluebird').map([1, 2, 3], (x) => x * x);`],
  [
    'p-limit',
    `const limit = (await import('p-limit')).default(2); return Promise.all([1, 2, 3].map((x) => limit(async () => x * 2)));`,
  ],
  [
    'p-queue',
    `const Queue = (await import('p-queue')).default; const q = new Queue({ concurrency: 2 }); return Promise.all([1, 2].map((x) => q.add(async () => x)));`,
  ],
  [
    'p-retry',
    `const retry = (await import('p-retry')).default; let n = 0; return retry(async () => { if (++n < 2) throw new Error('again'); return n; }, { minTimeout: 1 });`,
  ],
  [
    'eventemitter3',
    `const E = require('eventemitter3'); const e = new E(); let got; e.on('x', (v) => (got = v)); e.emit('x', 5); return got;`,
  ],
  ['deepmerge', `return require('deepmerge')({ a: { b: 1 } }, { a: { c: 2 } });`],
  ['fast-deep-equal', `return require('fast-deep-equal')({ a: [1] }, { a: [1] });`],
  ['flat', `const { flatten } = await import('flat'); return flatten({ a: { b: { c: 1 } } });`],
  ['object-hash', `return require('object-hash')({ b: 1, a: [2] });`],
  ['ms', `return require('ms')('2 days');`],
  ['debug', `const d = require('debug')('x'); d('quiet'); return d.enabled;`],
  ['semver', `return require('semver').maxSatisfying(['1.2.3', '1.4.0', '2.0.0'], '^1.2');`],
  ['minimist', `return require('minimist')(['--a', '1', 'b']);`],
  [
    'commander',
    `const { Command } = require('commander'); const p = new Command().option('-n <n>'); p.parse(['-n', '3'], { from: 'user' }); return p.opts();`,
  ],
  ['yargs-parser', `return require('yargs-parser')('--a 1 --b');`],
  ['chalk', `const chalk = (await import('chalk')).default; return chalk.red('x').includes('x');`],
  [
    'redux',
    `const { legacy_createStore: c } = require('redux'); const s = c((n = 0, a) => (a.type === 'up' ? n + 1 : n)); s.dispatch({ type: 'up' }); return s.getState();`,
  ],
  [
    'xstate',
    `const { createMachine, createActor } = require('xstate'); const a = createActor(createMachine({ initial: 'a', states: { a: { on: { GO: 'b' } }, b: {} } })).start(); a.send({ type: 'GO' }); return a.getSnapshot().value;`,
  ],
  [
    'lru-cache',
    `const { LRUCache } = require('lru-cache'); const c = new LRUCache({ max: 2 }); c.set('a', 1); c.set('b', 2); c.set('c', 3); return [...c.keys()];`,
  ],
  [
    'node-cache',
    `const C = require('node-cache'); const c = new C({ checkperiod: 0 }); c.set('a', 1); return c.get('a');`,
  ],
  [
    'keyv',
    `const { default: Keyv } = await import('keyv'); const k = new Keyv(); await k.set('a', 1); return k.get('a');`,
  ],
  [
    'i18next',
    `const i = require('i18next'); await i.init({ lng: 'de', showSupportNotice: false, resources: { de: { translation: { hi: 'Hallo {{n}}' } } } }); return i.t('hi', { n: 'X' });`,
  ],

  // Ids and random values
  ['uuid', `return (await import('uuid')).v4();`, { differs: true }],
  ['nanoid', `return (await import('nanoid')).nanoid();`, { differs: true }],
  ['ulid', `return require('ulid').ulid().length;`],
  ['bson-objectid', `return require('bson-objectid')().toHexString();`, { differs: true }],
  ['bson', `const { serialize, deserialize } = require('bson'); return deserialize(serialize({ a: 1, b: 'x' }));`],
  ['xid-js', `return require('xid-js').next();`, { differs: true }],
  [
    '@faker-js/faker',
    `const { faker } = await import('@faker-js/faker'); return faker.string.alphanumeric(20);`,
    { differs: true },
  ],
  ['casual', `return require('casual').array_of_digits(16).join('');`, { differs: true }],
  ['chance', `return new (require('chance'))().string({ length: 20 });`, { differs: true }],
  ['random', `const random = (await import('random')).default; return String(random.float());`, { differs: true }],
  ['seedrandom', `return require('seedrandom')('seed')();`],
  [
    'short-unique-id',
    `const S = require('short-unique-id'); return new (S.default ?? S)({ length: 16 }).rnd();`,
    { differs: true },
  ],
  ['@paralleldrive/cuid2', `return (await import('@paralleldrive/cuid2')).createId();`, { differs: true }],
  ['hashids', `const H = require('hashids'); return new (H.default ?? H)('salt').encode(1, 2, 3);`],
  [
    'unique-names-generator',
    `const u = require('unique-names-generator'); return u.uniqueNamesGenerator({ dictionaries: [u.colors, u.animals], seed: 5 });`,
  ],
  [
    'mathjs',
    `const m = require('mathjs'); return [m.evaluate('2 * 3 ^ 2'), m.randomInt(0, 2 ** 40)].join();`,
    { differs: true },
  ],

  // Numbers and dates
  ['date-fns', `const f = require('date-fns'); return f.formatISO(f.addDays(f.parseISO('2020-01-31T00:00:00Z'), 1));`],
  ['dayjs', `return require('dayjs')('2020-01-01').add(1, 'month').format('YYYY-MM-DD');`],
  ['moment', `return require('moment').utc('2020-01-01').add(3, 'days').format();`],
  ['moment-timezone', `return require('moment-timezone').tz('2020-06-01 12:00', 'Europe/Berlin').utc().format();`],
  [
    'luxon',
    `return require('luxon').DateTime.fromISO('2020-01-01T00:00:00Z', { zone: 'utc' }).plus({ days: 1 }).toISO();`,
  ],
  [
    'cron-parser',
    `const { CronExpressionParser: P } = require('cron-parser'); return P.parse('0 0 * * *', { currentDate: '2020-01-01T01:00:00Z', tz: 'UTC' }).next().toISOString();`,
  ],
  [
    'rrule',
    `const { RRule } = require('rrule'); return new RRule({ freq: RRule.WEEKLY, count: 3, dtstart: new Date(Date.UTC(2020, 0, 1)) }).all();`,
  ],
  ['humanize-duration', `return require('humanize-duration')(3600000 * 26);`],
  ['chrono-node', `return require('chrono-node').parseDate('2020-05-05 10:00 UTC').toISOString();`],
  ['bignumber.js', `const B = require('bignumber.js'); return new B('0.1').plus('0.2').toString();`],
  ['decimal.js', `const D = require('decimal.js'); return new D(2).sqrt().toFixed(30);`],
  ['big.js', `const B = require('big.js'); return new B(1).div(3).toString();`],
  ['fraction.js', `const F = require('fraction.js'); return new (F.default ?? F)(1, 3).add(1, 6).toString();`],
  ['currency.js', `return require('currency.js')(1.23).add(2.34).format();`],
  ['numeral', `return require('numeral')(1234567.891).format('0,0.00');`],
  [
    'simple-statistics',
    `const s = require('simple-statistics'); return [s.mean([1, 2, 3]), s.standardDeviation([1, 2, 3])];`,
  ],
  [
    'ml-matrix',
    `const { Matrix } = require('ml-matrix'); return new Matrix([[1, 2], [3, 4]]).mmul(Matrix.eye(2)).to2DArray();`,
  ],
  [
    'd3',
    `const d3 = await import('d3'); return d3.rollups([{ k: 'a', v: 1 }, { k: 'a', v: 2 }], (v) => d3.sum(v, (d) => d.v), (d) => d.k);`,
  ],
  ['technicalindicators', `return require('technicalindicators').SMA.calculate({ period: 2, values: [1, 2, 3, 4] });`],
  ['convert-units', `const c = require('convert-units'); return (c.default ?? c)(1).from('l').to('ml');`],

  // Validation
  ['zod', `const { z } = require('zod'); return z.object({ a: z.number() }).safeParse({ a: 'x' }).success;`],
  [
    'ajv',
    `const A = require('ajv'); const v = new (A.default ?? A)().compile({ type: 'object', required: ['a'] }); return [v({ a: 1 }), v({})];`,
  ],
  [
    'ajv-formats',
    `const A = require('ajv'); const a = new (A.default ?? A)(); const f = require('ajv-formats'); (f.default ?? f)(a); return a.compile({ type: 'string', format: 'email' })('a@b.de');`,
    { with: { ajv: 'latest' } },
  ],
  ['joi', `const J = require('joi'); return J.object({ a: J.number().required() }).validate({}).error.message;`],
  ['yup', `const y = require('yup'); return y.object({ a: y.number().required() }).isValid({ a: 'q' });`],
  ['valibot', `const v = await import('valibot'); return v.safeParse(v.object({ a: v.number() }), { a: 1 }).success;`],
  ['superstruct', `const s = require('superstruct'); return s.is({ a: 1 }, s.object({ a: s.number() }));`],
  ['validator', `return require('validator').isEmail('a@example.com');`],
  ['libphonenumber-js', `return require('libphonenumber-js').parsePhoneNumber('+49 30 123456').country;`],
  [
    'google-libphonenumber',
    `const u = require('google-libphonenumber').PhoneNumberUtil.getInstance(); return u.isValidNumber(u.parse('030 123456', 'DE'));`,
  ],
  ['iban', `return require('iban').isValid('DE89370400440532013000');`],
  [
    '@sinclair/typebox',
    `const { Type } = require('@sinclair/typebox'); return Type.Object({ a: Type.Number() }).type;`,
  ],

  // Text and search
  ['slugify', `return require('slugify')('Größe über alles');`],
  ['he', `return require('he').decode('&lt;&uuml;&gt;');`],
  ['entities', `return require('entities').encodeXML('<a & b>');`],
  ['iconv-lite', `const i = require('iconv-lite'); return i.decode(i.encode('ü€', 'win1252'), 'win1252');`],
  [
    'fuse.js',
    `const F = require('fuse.js'); return new (F.default ?? F)(['apple', 'orange'], {}).search('aple').map((r) => r.item);`,
  ],
  [
    'lunr',
    `const l = require('lunr')(function () { this.field('t'); this.add({ id: 1, t: 'hello world' }); }); return l.search('hello').length;`,
  ],
  [
    'minisearch',
    `const M = require('minisearch'); const m = new (M.default ?? M)({ fields: ['t'] }); m.add({ id: 1, t: 'zen art' }); return m.search('zen').map((r) => r.id);`,
  ],
  [
    'flexsearch',
    `const F = require('flexsearch'); const i = new (F.Index ?? F.default.Index)(); i.add(1, 'hello'); return i.search('hello');`,
  ],
  ['leven', `const l = (await import('leven')).default; return l('kitten', 'sitting');`],
  ['fastest-levenshtein', `return require('fastest-levenshtein').distance('kitten', 'sitting');`],
  ['string-similarity', `return require('string-similarity').compareTwoStrings('healed', 'sealed');`],
  [
    'compromise',
    `const nlp = require('compromise'); return (nlp.default ?? nlp)('she sells seashells').verbs().toPastTense().text();`,
  ],
  ['natural', `return new (require('natural').WordTokenizer)().tokenize('a quick fox');`],
  ['stopword', `return require('stopword').removeStopwords(['a', 'really', 'interesting', 'the']);`],
  [
    'franc',
    `return (await import('franc')).franc('Alle Menschen sind frei und gleich an Würde und Rechten geboren.');`,
  ],
  ['diff', `return require('diff').diffWords('a b c', 'a x c').length;`],
  ['sentiment', `return new (require('sentiment'))().analyze('cats are great').score;`],
  ['pluralize', `return require('pluralize')('person', 2);`],
  ['gpt-tokenizer', `const t = await import('gpt-tokenizer'); return t.encode('hello world').length;`],
  [
    'js-tiktoken',
    `const { getEncoding } = require('js-tiktoken'); return getEncoding('cl100k_base').encode('hello world').length;`,
  ],

  // Formats
  ['csv-parse', `return require('csv-parse/sync').parse('a,b\\n1,2', { columns: true });`],
  ['csv-stringify', `return require('csv-stringify/sync').stringify([[1, 'x,y']]);`],
  ['papaparse', `return require('papaparse').parse('a,b\\n1,2', { header: true }).data;`],
  [
    'fast-csv',
    `const { parseString } = require('fast-csv'); const rows = []; await new Promise((ok, no) => parseString('a,b\\n1,2', { headers: true }).on('data', (r) => rows.push(r)).on('end', ok).on('error', no)); return rows;`,
  ],
  [
    'xlsx',
    `const X = require('xlsx'); const wb = X.utils.book_new(); X.utils.book_append_sheet(wb, X.utils.aoa_to_sheet([[1, 2]]), 's'); return X.utils.sheet_to_json(X.read(X.write(wb, { type: 'buffer' })).Sheets.s, { header: 1 });`,
  ],
  [
    'exceljs',
    `const E = require('exceljs'); const wb = new E.Workbook(); wb.addWorksheet('s').addRow([1, 2]); const again = new E.Workbook(); await again.xlsx.load(await wb.xlsx.writeBuffer()); return again.worksheets[0].getRow(1).values.slice(1);`,
  ],
  [
    'pdf-lib',
    `const { PDFDocument } = require('pdf-lib'); const d = await PDFDocument.create(); d.addPage([100, 100]); return (await PDFDocument.load(await d.save())).getPageCount();`,
  ],
  [
    'pdfkit',
    `const P = require('pdfkit'); const d = new P({ compress: false }); let n = 0; d.on('data', (c) => (n += c.length)); const end = new Promise((ok) => d.on('end', ok)); d.text('hello'); d.end(); await end; return n > 500;`,
  ],
  [
    'docx',
    `const { Document, Packer, Paragraph } = require('docx'); const b = await Packer.toBuffer(new Document({ sections: [{ children: [new Paragraph('x')] }] })); return b.subarray(0, 2).toString();`,
  ],
  [
    'pptxgenjs',
    `const P = require('pptxgenjs'); const p = new (P.default ?? P)(); p.addSlide().addText('x'); return (await p.write({ outputType: 'nodebuffer' })).subarray(0, 2).toString();`,
  ],
  [
    'jszip',
    `const Z = require('jszip'); const z = new Z(); z.file('a.txt', 'hello'); return (await Z.loadAsync(await z.generateAsync({ type: 'nodebuffer' }))).file('a.txt').async('string');`,
  ],
  [
    'adm-zip',
    `const Z = require('adm-zip'); const z = new Z(); z.addFile('a.txt', Buffer.from('hi')); return new Z(z.toBuffer()).readAsText('a.txt');`,
  ],
  [
    'tar',
    `const tar = require('tar'), fs = require('fs'); fs.writeFileSync('a.txt', 'x'); await tar.c({ file: 'a.tgz', gzip: true }, ['a.txt']); const names = []; await tar.t({ file: 'a.tgz', onReadEntry: (e) => names.push(e.path) }); return names;`,
  ],
  ['pako', `const p = require('pako'); return p.inflate(p.deflate(new Uint8Array([1, 2, 3])));`],
  ['fflate', `const f = require('fflate'); return f.strFromU8(f.gunzipSync(f.gzipSync(f.strToU8('hello'))));`],
  ['yaml', `return require('yaml').parse('a: [1, 2]\\nb: {c: d}');`],
  ['js-yaml', `return require('js-yaml').dump({ a: [1, { b: 2 }] });`],
  ['smol-toml', `return require('smol-toml').parse('a = 1\\n[b]\\nc = "x"');`],
  ['ini', `return require('ini').parse('[a]\\nb=1');`],
  ['dotenv', `return require('dotenv').parse('A=1\\nB="x y"');`],
  ['fast-xml-parser', `return new (require('fast-xml-parser').XMLParser)().parse('<a><b>1</b></a>');`],
  ['xml2js', `return require('xml2js').parseStringPromise('<a><b>1</b></a>');`],
  ['xmlbuilder2', `return require('xmlbuilder2').create().ele('a').txt('x').end();`],
  ['json5', `return require('json5').parse("{a: 1, /* c */ b: 'x',}");`],
  [
    'jsonpath-plus',
    `return require('jsonpath-plus').JSONPath({ path: '$.a[*].b', json: { a: [{ b: 1 }, { b: 2 }] } });`,
  ],
  ['jmespath', `return require('jmespath').search({ a: [{ b: 1 }] }, 'a[0].b');`],
  ['jsonata', `return require('jsonata')('$sum(a.b)').evaluate({ a: [{ b: 1 }, { b: 2 }] });`],
  ['fast-json-patch', `return require('fast-json-patch').compare({ a: 1 }, { a: 2, b: 3 });`],
  ['jsondiffpatch', `const j = await import('jsondiffpatch'); return j.diff({ a: 1 }, { a: 2 });`],
  ['msgpackr', `const m = require('msgpackr'); return m.unpack(m.pack({ a: [1, 'x'] }));`],
  ['@msgpack/msgpack', `const m = require('@msgpack/msgpack'); return m.decode(m.encode({ a: 1 }));`],
  [
    'protobufjs',
    `const p = require('protobufjs'); const T = p.parse('syntax="proto3"; message T { int32 a = 1; }').root.lookupType('T'); return T.toObject(T.decode(T.encode({ a: 5 }).finish()));`,
  ],
  [
    'avsc',
    `const t = require('avsc').Type.forSchema({ type: 'record', name: 'R', fields: [{ name: 'a', type: 'int' }] }); return { ...t.fromBuffer(t.toBuffer({ a: 7 })) };`,
  ],
  ['cbor-x', `const c = require('cbor-x'); return c.decode(c.encode({ a: 1 }));`],
  [
    'ical.js',
    `const I = await import('ical.js'); return (I.default ?? I).parse('BEGIN:VCALENDAR\\nVERSION:2.0\\nEND:VCALENDAR')[0];`,
  ],
  [
    'node-ical',
    `const i = require('node-ical'); return Object.keys(i.sync.parseICS('BEGIN:VCALENDAR\\nBEGIN:VEVENT\\nUID:1\\nDTSTART:20200101T000000Z\\nSUMMARY:x\\nEND:VEVENT\\nEND:VCALENDAR')).length > 0;`,
  ],
  ['mailparser', `return (await require('mailparser').simpleParser('Subject: hi\\r\\n\\r\\nbody')).subject;`],

  // Markup and templates
  ['cheerio', `return require('cheerio').load('<ul><li>a<li>b</ul>')('li').map((i, e) => e.children[0].data).get();`],
  [
    'jsdom',
    `const { JSDOM } = require('jsdom'); return new JSDOM('<p>hi</p>').window.document.querySelector('p').textContent;`,
  ],
  [
    'linkedom',
    `const { parseHTML } = await import('linkedom'); return parseHTML('<p>hi</p>').document.querySelector('p').textContent;`,
  ],
  ['node-html-parser', `return require('node-html-parser').parse('<p class=a>x</p>').querySelector('.a').text;`],
  ['html-to-text', `return require('html-to-text').convert('<h1>A</h1><p>b</p>');`],
  ['turndown', `const T = require('turndown'); return new T().turndown('<h1>A</h1><p><b>b</b></p>');`],
  ['sanitize-html', `return require('sanitize-html')('<b>x</b><script>y</script>');`],
  [
    'isomorphic-dompurify',
    `const d = require('isomorphic-dompurify'); return (d.default ?? d).sanitize('<b onclick=1>x</b>');`,
  ],
  [
    '@mozilla/readability',
    `const { JSDOM } = require('jsdom'); const { Readability } = require('@mozilla/readability'); return new Readability(new JSDOM('<article><h1>T</h1><p>' + 'word '.repeat(200) + '</p></article>').window.document).parse().length > 100;`,
    { with: { jsdom: 'latest' } },
  ],
  ['marked', `return (await import('marked')).marked.parse('# A\\n\\n*b*');`],
  ['markdown-it', `return new (require('markdown-it'))().render('# A');`],
  ['remark', `const { remark } = await import('remark'); return String(await remark().process('# A'));`],
  ['handlebars', `return require('handlebars').compile('Hi {{n}}')({ n: 'X' });`],
  ['mustache', `return require('mustache').render('Hi {{n}}', { n: 'X' });`],
  ['ejs', `return require('ejs').render('<%= a + 1 %>', { a: 1 });`],
  ['nunjucks', `return require('nunjucks').renderString('{{ a | upper }}', { a: 'x' });`],
  ['pug', `return require('pug').render('p= a', { a: 'x' });`],
  [
    'liquidjs',
    `const { Liquid } = require('liquidjs'); return new Liquid().parseAndRender('{{ a | upcase }}', { a: 'x' });`,
  ],
  [
    'juice',
    `const j = await import('juice'); return (j.default?.default ?? j.default ?? j)('<style>p{color:red}</style><p>x</p>');`,
  ],
  [
    'mjml',
    `const m = require('mjml'); const out = await (m.default ?? m)('<mjml><mj-body><mj-text>hi</mj-text></mj-body></mjml>'); return out.html.includes('hi');`,
  ],
  [
    'react-dom',
    `const React = require('react'); return require('react-dom/server').renderToString(React.createElement('p', null, 'x'));`,
    { with: { react: 'latest' } },
  ],
  ['katex', `return require('katex').renderToString('x^2').length > 50;`],
  ['highlight.js', `return require('highlight.js').highlight('let a = 1', { language: 'js' }).value;`],

  // Cryptography
  ['jsonwebtoken', `const j = require('jsonwebtoken'); return j.verify(j.sign({ a: 1, iat: 1 }, 'key'), 'key').a;`],
  [
    'jose',
    `const j = await import('jose'); const k = new TextEncoder().encode('0123456789abcdef0123456789abcdef'); return (await j.jwtVerify(await new j.SignJWT({ a: 1 }).setProtectedHeader({ alg: 'HS256' }).sign(k), k)).payload;`,
  ],
  ['bcryptjs', `const b = require('bcryptjs'); return b.compare('x', await b.hash('x', 4));`],
  ['bcrypt', `const b = require('bcrypt'); return b.compare('x', await b.hash('x', 4));`],
  [
    'argon2',
    `const a = require('argon2'); return a.verify(await a.hash('x', { timeCost: 2, memoryCost: 1024 }), 'x');`,
  ],
  ['crypto-js', `return require('crypto-js').SHA256('x').toString();`],
  ['tweetnacl', `return Buffer.from(require('tweetnacl').hash(new Uint8Array([1]))).toString('hex');`],
  ['node-forge', `return require('node-forge').md.sha256.create().update('x').digest().toHex();`],
  [
    '@noble/hashes',
    `const { sha256 } = await import('@noble/hashes/sha2.js'); return Buffer.from(sha256(new Uint8Array([1]))).toString('hex');`,
  ],
  [
    'otplib',
    `const o = require('otplib'); return (await o.generate({ secret: 'GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ' })).length;`,
  ],
  ['ethers', `const { ethers } = require('ethers'); return ethers.parseEther('1.5').toString();`],
  ['viem', `const { parseEther, keccak256 } = require('viem'); return [String(parseEther('1')), keccak256('0x01')];`],
  [
    'openpgp',
    `const o = await import('openpgp'); const m = await o.encrypt({ message: await o.createMessage({ text: 'hi' }), passwords: ['p'] }); return (await o.decrypt({ message: await o.readMessage({ armoredMessage: m }), passwords: ['p'] })).data;`,
  ],
  [
    'bip39',
    `return require('bip39').mnemonicToEntropy('abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon about');`,
  ],

  // HTTP and services
  ['axios', `return (await require('axios').get(args.url + '/json')).data;`],
  ['node-fetch', `const f = (await import('node-fetch')).default; return (await f(args.url + '/json')).json();`],
  ['got', `const got = (await import('got')).default; return got(args.url + '/json').json();`],
  ['undici', `const { request } = require('undici'); return (await request(args.url + '/json')).body.json();`],
  ['superagent', `return (await require('superagent').get(args.url + '/json')).body;`],
  ['ky', `const ky = (await import('ky')).default; return ky(args.url + '/json').json();`],
  ['needle', `return (await require('needle')('get', args.url + '/json')).body;`],
  ['cross-fetch', `return (await require('cross-fetch')(args.url + '/json')).json();`],
  ['ofetch', `return (await import('ofetch')).ofetch(args.url + '/json');`],
  [
    'form-data',
    `const F = require('form-data'); const f = new F(); f.append('a', 'x'); return f.getLengthSync() > 50;`,
  ],
  ['qs', `return require('qs').parse('a[b]=1&c=2');`],
  ['query-string', `return (await import('query-string')).default.stringify({ a: [1, 2] });`],
  ['path-to-regexp', `return require('path-to-regexp').match('/u/:id')('/u/5').params.id;`],
  [
    'express',
    `const app = require('express')(); app.get('/', (q, r) => r.json({ ok: 1 })); const s = await new Promise((ok) => { const s = app.listen(0, '127.0.0.1', () => ok(s)); }); const r = await (await fetch('http://127.0.0.1:' + s.address().port)).json(); s.closeAllConnections(); s.close(); return r;`,
  ],
  [
    'fastify',
    `const f = require('fastify')(); f.get('/', async () => ({ ok: 1 })); return (await f.inject('/')).json();`,
  ],
  [
    'koa',
    `const K = require('koa'); const app = new (K.default ?? K)(); app.use((c) => { c.body = { ok: 1 }; }); const s = await new Promise((ok) => { const s = app.listen(0, '127.0.0.1', () => ok(s)); }); const r = await (await fetch('http://127.0.0.1:' + s.address().port)).json(); s.closeAllConnections(); s.close(); return r;`,
  ],
  [
    'hono',
    `const { Hono } = require('hono'); const a = new Hono(); a.get('/', (c) => c.json({ ok: 1 })); return (await a.request('/')).json();`,
  ],
  [
    'ws',
    `const { WebSocketServer, WebSocket } = require('ws'); const s = new WebSocketServer({ port: 0, host: '127.0.0.1' }); await new Promise((ok) => s.on('listening', ok)); s.on('connection', (c) => c.send('hi')); const c = new WebSocket('ws://127.0.0.1:' + s.address().port); const m = await new Promise((ok, no) => { c.on('message', (d) => ok(String(d))); c.on('error', no); }); c.terminate(); s.close(); return m;`,
  ],
  [
    'graphql',
    `const { graphql, buildSchema } = require('graphql'); return (await graphql({ schema: buildSchema('type Query { a: Int }'), source: '{ a }', rootValue: { a: 5 } })).data.a;`,
  ],
  [
    'graphql-request',
    `const { gql } = await import('graphql-request'); return gql\`query { a }\`;`,
    { with: { graphql: '^16' } },
  ],
  [
    'openai',
    `const O = require('openai'); const c = new (O.default ?? O)({ apiKey: 'k', baseURL: args.url + '/v1' }); return (await c.chat.completions.create({ model: 'm', messages: [{ role: 'user', content: 'x' }] })).choices[0].message.content;`,
  ],
  [
    '@anthropic-ai/sdk',
    `const A = require('@anthropic-ai/sdk'); const c = new (A.default ?? A)({ apiKey: 'k', baseURL: args.url }); return (await c.messages.create({ model: 'm', max_tokens: 5, messages: [{ role: 'user', content: 'x' }] })).content[0].text;`,
  ],
  [
    'stripe',
    `const S = require('stripe'); return new (S.default ?? S)('sk_test_x').webhooks.generateTestHeaderString({ payload: '{}', secret: 's', timestamp: 1 });`,
  ],
  [
    '@aws-sdk/client-s3',
    `const { S3Client, ListBucketsCommand } = require('@aws-sdk/client-s3'); const c = new S3Client({ region: 'us-east-1', endpoint: args.url, maxAttempts: 1, credentials: { accessKeyId: 'a', secretAccessKey: 'b' } }); return c.send(new ListBucketsCommand({})).then(() => 'ok', (e) => e.name);`,
  ],
  [
    '@octokit/rest',
    `const { Octokit } = await import('@octokit/rest'); return (await new Octokit({ baseUrl: args.url, log: { debug() {}, info() {}, warn() {}, error() {} } }).request('GET /json')).data;`,
  ],
  [
    '@slack/web-api',
    `const { WebClient } = require('@slack/web-api'); return new WebClient('x', { slackApiUrl: args.url + '/', retryConfig: { retries: 0 } }).auth.test().then((r) => r.ok, (e) => e.code);`,
  ],
  [
    'googleapis-common',
    `const { OAuth2Client } = require('googleapis-common'); return new OAuth2Client('id', 'secret', 'http://localhost/').generateAuthUrl({ scope: 'x' });`,
  ],
  [
    'nodemailer',
    `const t = require('nodemailer').createTransport({ jsonTransport: true }); return JSON.parse((await t.sendMail({ from: 'a@b.c', to: 'd@e.f', subject: 's', text: 'x' })).message).subject;`,
  ],
  [
    'rss-parser',
    `const P = require('rss-parser'); return (await new P().parseString('<rss version="2.0"><channel><title>T</title></channel></rss>')).title;`,
  ],
  [
    'robots-parser',
    `return require('robots-parser')('http://x/robots.txt', 'User-agent: *\\nDisallow: /a').isAllowed('http://x/a');`,
  ],
  ['mime-types', `return require('mime-types').lookup('a.json');`],
  [
    'tough-cookie',
    `const { CookieJar } = require('tough-cookie'); const j = new CookieJar(); await j.setCookie('a=1', 'http://localhost/'); return j.getCookieString('http://localhost/');`,
  ],

  // Databases
  [
    'better-sqlite3',
    `const D = require('better-sqlite3'); const d = new D(':memory:'); d.exec('create table t (a)'); d.prepare('insert into t values (?)').run(5); return d.prepare('select a from t').get();`,
    { range: '^12' },
  ],
  [
    'sql.js',
    `const S = await require('sql.js')(); const d = new S.Database(); return d.exec('select 1 + 1 as a')[0].values;`,
  ],
  ['knex', `return require('knex')({ client: 'pg' })('t').where({ a: 1 }).toString();`],
  ['drizzle-orm', `const { sql } = require('drizzle-orm'); return sql\`select \${1}\`.queryChunks.length;`],
  [
    'kysely',
    `const k = await import('kysely'); const d = new k.Kysely({ dialect: { createAdapter: () => new k.SqliteAdapter(), createDriver: () => new k.DummyDriver(), createIntrospector: (d) => new k.SqliteIntrospector(d), createQueryCompiler: () => new k.SqliteQueryCompiler() } }); return d.selectFrom('t').select('a').compile().sql;`,
  ],
  [
    'pg',
    `const { Client } = require('pg'); return new Client({ host: '127.0.0.1', port: 1 }).connect().then(() => 'ok', (e) => e.code);`,
  ],
  ['mysql2', `return require('mysql2').format('select ? from ??', [1, 't']);`],
  [
    'ioredis',
    `const R = require('ioredis'); const r = new (R.default ?? R)({ lazyConnect: true, port: 1, host: '127.0.0.1', retryStrategy: null, maxRetriesPerRequest: 0 }); r.on('error', () => {}); return r.connect().then(() => 'ok', (e) => e.message.slice(0, 20));`,
  ],
  [
    'redis',
    `const c = require('redis').createClient({ url: 'redis://127.0.0.1:1', socket: { reconnectStrategy: false } }); c.on('error', () => {}); return c.connect().then(() => 'ok', (e) => e.code ?? e.errors?.[0]?.code);`,
  ],
  ['mongodb', `const { ObjectId } = require('mongodb'); return new ObjectId().toHexString();`, { differs: true }],
  [
    'nedb-promises',
    `const D = require('nedb-promises'); const d = (D.default ?? D).create(); await d.insert({ a: 1 }); return d.count({});`,
  ],
  [
    'classic-level',
    `const { ClassicLevel } = require('classic-level'); const d = new ClassicLevel('db'); await d.put('a', '1'); const v = await d.get('a'); await d.close(); return v;`,
  ],
  [
    'lmdb',
    `const { open } = require('lmdb'); const d = open({ path: 'db' }); await d.put('a', 1); const v = d.get('a'); await d.close(); return v;`,
  ],
  [
    '@libsql/client',
    `const { createClient } = require('@libsql/client'); const c = createClient({ url: ':memory:' }); return (await c.execute('select 1 + 1 as a')).rows[0].a;`,
  ],
  [
    '@lancedb/lancedb',
    `const l = require('@lancedb/lancedb'); const d = await l.connect('lance'); await d.createTable('t', [{ id: 1, vector: [0.1, 0.2] }]); return d.tableNames();`,
  ],
  ['alasql', `return require('alasql')('select value max(a) from ?', [[{ a: 1 }, { a: 3 }]]);`],
  [
    '@duckdb/node-api',
    `const { DuckDBInstance } = require('@duckdb/node-api'); const c = await (await DuckDBInstance.create(':memory:')).connect(); return (await c.runAndReadAll('select 1 + 1')).getRows();`,
  ],

  // Images, geometry, colours
  [
    'sharp',
    `const s = require('sharp'); return (await s({ create: { width: 8, height: 8, channels: 3, background: 'red' } }).png().toBuffer()).subarray(1, 4).toString();`,
  ],
  [
    'jimp',
    `const { Jimp } = require('jimp'); return (await new Jimp({ width: 4, height: 4, color: 0xff0000ff }).getBuffer('image/png')).length > 20;`,
  ],
  [
    'pngjs',
    `const { PNG } = require('pngjs'); return PNG.sync.read(PNG.sync.write(new PNG({ width: 2, height: 2 }))).width;`,
  ],
  [
    'jpeg-js',
    `const j = require('jpeg-js'); return j.decode(j.encode({ data: Buffer.alloc(64), width: 4, height: 4 }, 50).data).width;`,
  ],
  [
    '@napi-rs/canvas',
    `const { createCanvas } = require('@napi-rs/canvas'); const c = createCanvas(4, 4); c.getContext('2d').fillRect(0, 0, 4, 4); return c.toBuffer('image/png').length > 20;`,
  ],
  ['qrcode', `return (await require('qrcode').toDataURL('x')).length > 100;`],
  ['bwip-js', `return (await require('bwip-js').toBuffer({ bcid: 'code128', text: '123' })).length > 50;`],
  [
    'svgo',
    `return (await import('svgo')).optimize('<svg xmlns="http://www.w3.org/2000/svg"><g><path d="M0 0 L1 1"/></g></svg>').data;`,
  ],
  [
    '@resvg/resvg-js',
    `const { Resvg } = require('@resvg/resvg-js'); return new Resvg('<svg xmlns="http://www.w3.org/2000/svg" width="4" height="4"/>').render().asPng().length > 20;`,
  ],
  ['color', `const C = await import('color'); return (C.default ?? C)('red').lighten(0.5).hex();`],
  ['tinycolor2', `return require('tinycolor2')('red').toHexString();`],
  ['chroma-js', `const c = await import('chroma-js'); return (c.default ?? c)('red').hex();`],
  ['geolib', `return require('geolib').getDistance({ latitude: 52, longitude: 13 }, { latitude: 48, longitude: 11 });`],
  ['@turf/turf', `const t = await import('@turf/turf'); return t.distance(t.point([13, 52]), t.point([11, 48]));`],
  [
    'exifr',
    `const e = require('exifr'); return (e.default ?? e).parse(Buffer.from('ffd8ffd9', 'hex')).then((x) => x ?? null, (x) => x.message);`,
  ],
  [
    'image-size',
    `const i = await import('image-size'); return (i.imageSize ?? i.default)(Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==', 'base64')).width;`,
  ],

  // Files, processes, threads
  [
    'fs-extra',
    `const f = require('fs-extra'); await f.outputJson('a/b.json', { x: 1 }); return f.readJson('a/b.json');`,
  ],
  ['glob', `const { globSync } = require('glob'); require('fs').writeFileSync('x.txt', ''); return globSync('*.txt');`],
  ['fast-glob', `require('fs').writeFileSync('x.txt', ''); return require('fast-glob')('*.txt');`],
  ['minimatch', `return require('minimatch').minimatch('a.js', '*.js');`],
  [
    'rimraf',
    `const fs = require('fs'); fs.mkdirSync('d'); await require('rimraf').rimraf('d'); return fs.existsSync('d');`,
  ],
  [
    'tmp',
    `const t = require('tmp').fileSync(); require('fs').writeSync(t.fd, 'x'); return require('fs').readFileSync(t.name, 'utf8');`,
  ],
  [
    'chokidar',
    `const c = require('chokidar'), fs = require('fs'); fs.mkdirSync('w'); const w = c.watch('w'); await new Promise((ok) => w.on('ready', ok)); const got = new Promise((ok) => w.on('add', (p) => ok(p))); fs.writeFileSync('w/a', 'x'); const p = await got; await w.close(); return p;`,
  ],
  ['execa', `const { execa } = await import('execa'); return (await execa('echo', ['hi'])).stdout;`],
  ['cross-spawn', `return String(require('cross-spawn').sync('echo', ['hi']).stdout).trim();`],
  ['shelljs', `return require('shelljs').exec('echo hi', { silent: true }).stdout.trim();`],
  ['zx', `const { $ } = await import('zx'); return (await $\`echo hi\`).stdout.trim();`],
  ['which', `const w = await import('which'); return (await (w.default ?? w)('sh')).endsWith('/sh');`],
  [
    'tinypool',
    `const { Tinypool } = await import('tinypool'); require('fs').writeFileSync('w.mjs', 'export default (n) => n * 2;'); const p = new Tinypool({ filename: require('path').resolve('w.mjs'), maxThreads: 1 }); const v = await p.run(4); await p.destroy(); return v;`,
  ],
  [
    'piscina',
    `const { Piscina } = require('piscina'); require('fs').writeFileSync('w.cjs', 'module.exports = (n) => n * 2;'); const p = new Piscina({ filename: require('path').resolve('w.cjs'), maxThreads: 1 }); const v = await p.run(4); await p.destroy(); return v;`,
  ],
  [
    'workerpool',
    `const p = require('workerpool').pool({ maxWorkers: 1, workerType: 'process' }); const v = await p.exec((a, b) => a + b, [3, 4]); await p.terminate(); return v;`,
  ],
  ['systeminformation', `return (await require('systeminformation').osInfo()).platform;`],
  [
    'archiver',
    `const a = await import('archiver'); const { PassThrough } = require('stream'); const z = a.ZipArchive ? new a.ZipArchive() : a.default('zip'); const out = []; z.on('data', (c) => out.push(c)); const end = new Promise((ok) => z.on('end', ok)); z.append('hi', { name: 'a.txt' }); await z.finalize(); await end; return Buffer.concat(out).subarray(0, 2).toString();`,
  ],
  ['winston', `const w = require('winston'); const l = w.createLogger({ silent: true }); l.info('x'); return l.level;`],
  ['pino', `const p = require('pino')({ level: 'silent' }); p.info('x'); return p.level;`],
  [
    'ssh2',
    `const { utils } = require('ssh2'); return utils.parseKey(utils.generateKeyPairSync('ed25519').public).type;`,
  ],
  [
    'ssh2-sftp-client',
    `return new (require('ssh2-sftp-client'))().connect({ host: '127.0.0.1', port: 1, username: 'x', password: 'y', retries: 0 }).then(() => 'ok', (e) => /ECONNREFUSED/.test(e.message));`,
  ],
  [
    'basic-ftp',
    `const { Client } = require('basic-ftp'); const c = new Client(500); return c.access({ host: '127.0.0.1', port: 1 }).then(() => 'ok', (e) => e.code);`,
  ],
  [
    'imapflow',
    `const { ImapFlow } = require('imapflow'); const c = new ImapFlow({ host: '127.0.0.1', port: 1, logger: false, auth: { user: 'x', pass: 'y' } }); c.on('error', () => {}); return c.connect().then(() => 'ok', (e) => e.code);`,
  ],

  // Compilers
  [
    'typescript',
    `return require('typescript').transpileModule('let a: number = 1', {}).outputText.trim();`,
    { range: '^5' },
  ],
  ['esbuild', `return (await require('esbuild').transform('let a: number = 1', { loader: 'ts' })).code;`],
  [
    '@swc/core',
    `return require('@swc/core').transformSync('let a: number = 1', { jsc: { parser: { syntax: 'typescript' } } }).code;`,
  ],
  ['@babel/core', `return require('@babel/core').transformSync('let a = 1', { configFile: false }).code;`],
  ['terser', `return (await require('terser').minify('function f(a) { return a + 1; } f(1);')).code.length > 3;`],
  ['prettier', `return require('prettier').format('let a=1', { parser: 'babel' });`],
  ['acorn', `return require('acorn').parse('a + 1', { ecmaVersion: 2022 }).body.length;`],
  ['sass', `return require('sass').compileString('a { b { c: d } }').css;`],
  ['postcss', `const p = require('postcss'); return p.parse('a{b:c}').first.selector;`],
  [
    'quickjs-emscripten',
    `const { getQuickJS } = require('quickjs-emscripten'); return (await getQuickJS()).evalCode('1 + 2');`,
  ],
  ['expr-eval', `return require('expr-eval').Parser.evaluate('2 * x', { x: 4 });`],
  [
    'nearley',
    `const n = require('nearley'); const g = new n.Grammar([new n.Rule('a', [{ literal: 'x' }])], 'a'); const p = new n.Parser(g); p.feed('x'); return p.results.length;`,
  ],
  [
    'chevrotain',
    `const { createToken, Lexer } = await import('chevrotain'); return new Lexer([createToken({ name: 'A', pattern: /a/ })]).tokenize('aa').tokens.length;`,
  ],

  // Language models
  ['ai', `return (await import('ai')).cosineSimilarity([1, 2], [2, 4]).toFixed(6);`],
  [
    '@langchain/core',
    `const { HumanMessage } = require('@langchain/core/messages'); return new HumanMessage('x').content;`,
  ],
  [
    '@modelcontextprotocol/sdk',
    `const { Client } = require('@modelcontextprotocol/sdk/client/index.js'); return typeof new Client({ name: 'x', version: '1' }).connect;`,
  ],

  // Browsers and documents
  [
    'puppeteer-core',
    `return require('puppeteer-core').launch({ executablePath: '/bin/false' }).then(() => 'ok', (e) => /Failed to launch/.test(e.message));`,
  ],
  [
    'playwright-core',
    `return require('playwright-core').chromium.launch({ executablePath: '/bin/false' }).then(() => 'ok', (e) => /browserType.launch/.test(e.message));`,
  ],
  [
    'pdfjs-dist',
    `const { PDFDocument } = require('pdf-lib'); const d = await PDFDocument.create(); d.addPage([100, 120]); const pdf = await import('pdfjs-dist/legacy/build/pdf.mjs'); const doc = await pdf.getDocument({ data: await d.save(), verbosity: 0 }).promise; const { width, height } = (await doc.getPage(1)).getViewport({ scale: 1 }); return [width, height];`,
    { with: { 'pdf-lib': 'latest' } },
  ],
];
