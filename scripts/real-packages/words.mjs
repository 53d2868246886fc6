// What each use does, in a few words, for docs/PACKAGES.md.

const LINES = `
lodash: groups a list
underscore: cuts a list in chunks
ramda: pipes a list
rambda: pipes a list
immer: changes a draft
immutable: changes a map
rxjs: maps a stream of values
async: maps with a limit
bluebird: maps with promises
p-limit: runs promises by a limit
p-queue: runs promises in a queue
p-retry: tries again after an error
eventemitter3: emits an event
deepmerge: merges objects
fast-deep-equal: compares objects
flat: flattens an object
object-hash: hashes an object
ms: reads a duration
debug: makes a logger
semver: finds the highest version of a range
minimist: reads arguments
commander: reads options
yargs-parser: reads arguments
chalk: colours a text
redux: reduces an action
xstate: runs a state machine
lru-cache: drops the oldest entry
node-cache: keeps a value
keyv: keeps a value
i18next: translates a text
uuid: draws an id
nanoid: draws an id
ulid: draws an id, tells its length
bson-objectid: draws an id
bson: writes and reads a document
xid-js: draws an id
@faker-js/faker: draws a text
casual: draws digits
chance: draws a text
random: draws a number
seedrandom: draws by a seed
short-unique-id: draws an id
@paralleldrive/cuid2: draws an id
hashids: encodes numbers
unique-names-generator: draws a name by a seed
mathjs: evaluates a formula and draws a number
date-fns: calculates with dates
dayjs: formats a date
moment: formats a date
moment-timezone: converts a time zone
luxon: converts a time zone
cron-parser: finds the next run
rrule: lists recurring dates
humanize-duration: words a duration
chrono-node: reads a date in words
bignumber.js: adds decimals
decimal.js: adds decimals
big.js: adds decimals
fraction.js: adds fractions
currency.js: adds amounts
numeral: formats a number
simple-statistics: finds a mean
ml-matrix: multiplies matrices
d3: sums by groups
technicalindicators: finds a moving average
convert-units: converts a unit
zod: checks an object
ajv: checks by a JSON schema
ajv-formats: checks the format of a text
joi: checks an object
yup: checks an object
valibot: checks an object
superstruct: checks an object
validator: checks an address
libphonenumber-js: reads a phone number
google-libphonenumber: checks a phone number
iban: checks an account number
@sinclair/typebox: makes a JSON schema
slugify: makes a slug
he: decodes entities
entities: encodes entities
iconv-lite: converts an encoding
fuse.js: searches a list
lunr: indexes and searches texts
minisearch: indexes and searches texts
flexsearch: indexes and searches texts
leven: counts edits
fastest-levenshtein: counts edits
string-similarity: compares texts
compromise: puts verbs into the past
natural: splits a text in words
stopword: removes filler words
franc: finds the language of a text
diff: compares texts by words
sentiment: rates a text
pluralize: forms a plural
gpt-tokenizer: counts tokens
js-tiktoken: counts tokens
csv-parse: reads CSV
csv-stringify: writes CSV
papaparse: reads CSV
fast-csv: reads CSV as a stream
xlsx: writes and reads a workbook
exceljs: writes and reads a workbook
pdf-lib: writes and reads a PDF
pdfkit: writes a PDF
docx: writes a document
pptxgenjs: writes a presentation
jszip: writes and reads an archive
adm-zip: writes and reads an archive
tar: writes and lists an archive on disk
pako: deflates and inflates
fflate: packs and unpacks by gzip
yaml: reads YAML
js-yaml: writes YAML
smol-toml: reads TOML
ini: reads INI
dotenv: reads variables
fast-xml-parser: reads XML
xml2js: reads XML
xmlbuilder2: writes XML
json5: reads JSON5
jsonpath-plus: finds values by a path
jmespath: finds a value by a query
jsonata: sums by a query
fast-json-patch: makes a patch
jsondiffpatch: compares objects
msgpackr: writes and reads MessagePack
@msgpack/msgpack: writes and reads MessagePack
protobufjs: writes and reads a message
avsc: writes and reads Avro
cbor-x: writes and reads CBOR
ical.js: reads a calendar
node-ical: reads a calendar
mailparser: reads a mail
cheerio: finds elements of HTML
jsdom: makes a document
linkedom: makes a document
node-html-parser: finds an element
html-to-text: makes text of HTML
turndown: makes Markdown of HTML
sanitize-html: cleans HTML
isomorphic-dompurify: cleans HTML
@mozilla/readability: finds the article of a page
marked: renders Markdown
markdown-it: renders Markdown
remark: rewrites Markdown
handlebars: renders a template
mustache: renders a template
ejs: renders a template
nunjucks: renders a template
pug: renders a template
liquidjs: renders a template
juice: puts styles inline
mjml: renders a mail
react-dom: renders an element
katex: renders a formula
highlight.js: highlights code
jsonwebtoken: signs and checks a token
jose: signs and checks a token
bcryptjs: hashes and checks a password
bcrypt: hashes and checks a password
argon2: hashes and checks a password
crypto-js: hashes a text
tweetnacl: hashes bytes
node-forge: hashes a text
@noble/hashes: hashes bytes
otplib: draws up a one-time password
ethers: converts an amount
viem: converts an amount, hashes
openpgp: encrypts and decrypts
bip39: reads a mnemonic
axios: asks an HTTP server
node-fetch: asks an HTTP server
got: asks an HTTP server
undici: asks an HTTP server
superagent: asks an HTTP server
ky: asks an HTTP server
needle: asks an HTTP server
cross-fetch: asks an HTTP server
ofetch: asks an HTTP server
form-data: builds a form
qs: reads a query
query-string: writes a query
path-to-regexp: matches a path
express: serves and asks itself
fastify: serves an injected request
koa: serves and asks itself
hono: answers a request
ws: serves and connects to itself
graphql: runs a query
graphql-request: writes a query
openai: asks a server that imitates the API
@anthropic-ai/sdk: asks a server that imitates the API
stripe: signs an event
@aws-sdk/client-s3: asks a server that has no such service
@octokit/rest: asks an HTTP server
@slack/web-api: asks a server that has no such service
googleapis-common: writes an address
nodemailer: writes a mail
rss-parser: reads a feed
robots-parser: asks whether a page is allowed
mime-types: finds a type
tough-cookie: keeps a cookie
better-sqlite3: writes and reads a table (addon)
sql.js: runs a query (WebAssembly)
knex: writes a query
drizzle-orm: writes a query
kysely: writes a query
pg: connects to a closed port
mysql2: formats a query
ioredis: connects to a closed port
redis: connects to a closed port
mongodb: draws an id
nedb-promises: inserts and counts
classic-level: writes and reads a database on disk (addon)
lmdb: writes and reads a database on disk (addon)
@libsql/client: runs a query (addon)
@lancedb/lancedb: makes a table on disk (addon)
alasql: runs a query
@duckdb/node-api: runs a query (addon)
sharp: makes an image (addon)
jimp: makes an image
pngjs: writes and reads an image
jpeg-js: writes and reads an image
@napi-rs/canvas: draws an image (addon)
qrcode: makes a code
bwip-js: makes a bar code
svgo: minifies an image
@resvg/resvg-js: renders an image (addon)
color: lightens a colour
tinycolor2: converts a colour
chroma-js: converts a colour
geolib: measures a distance
@turf/turf: measures a distance
exifr: looks for data of a camera
image-size: measures an image
fs-extra: writes and reads a file
glob: finds files
fast-glob: finds files
minimatch: matches a pattern
rimraf: removes a folder
tmp: writes and reads a temporary file
chokidar: watches a folder
execa: runs a program
cross-spawn: runs a program
shelljs: runs a program
zx: runs a program
which: finds a program
tinypool: runs a function in a thread
piscina: runs a function in a thread
workerpool: runs a function in a process
systeminformation: tells the system
archiver: writes an archive
winston: logs nothing
pino: logs nothing
ssh2: makes and reads a key
ssh2-sftp-client: connects to a closed port
basic-ftp: connects to a closed port
imapflow: connects to a closed port
typescript: compiles TypeScript
esbuild: compiles TypeScript (a program of its own)
@swc/core: compiles TypeScript (addon)
@babel/core: compiles JavaScript
terser: minifies JavaScript
prettier: formats JavaScript
acorn: parses JavaScript
sass: compiles styles
postcss: parses styles
quickjs-emscripten: runs JavaScript (WebAssembly)
expr-eval: evaluates a formula
nearley: parses by a grammar
chevrotain: splits a text in tokens
ai: compares vectors
@langchain/core: makes a message
@modelcontextprotocol/sdk: makes a client
puppeteer-core: starts a browser that ends at once
playwright-core: starts a browser that ends at once
pdfjs-dist: reads a PDF
`;

/** @type {Record<string, string>} package → what its use does */
export const WORDS = Object.fromEntries(
  LINES.trim()
    .split('\n')
    .map((line) => line.split(/: (.*)/, 2))
);
