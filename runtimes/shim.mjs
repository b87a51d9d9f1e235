// The Node.js runtime of usher: it serves the functions of one NAME.usher.js, .mjs, .ts
// or .mts as MCP tools over stdin and stdout, one JSON-RPC message per line.
//
//     node shim.mjs FILE
//
// usher checks the arguments of a call before it sends them, and makes the tool result
// from the returned value.
//
// In reading order: the pipes, the protocol, calls, results, loading the file, finding
// its methods, and reading their comments and types. V8 has parsed the file by then: the
// text of a function is a slice of it.

import { AsyncLocalStorage } from 'node:async_hooks'
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import module from 'node:module'
import net from 'node:net'
import path from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { inspect } from 'node:util'

// The module may replace writeSync.
const { writeSync } = fs
const { stringify } = JSON
const file = path.resolve(process.argv[2])
const base = path.basename(file)
const name = base.split('.usher')[0]
const text = fs.readFileSync(file, 'utf8').replace('\uFEFF', '')
// The module must not see usher's argument.
process.argv.splice(2)

const pipes = takeStdio()

// ---- The pipes

// takeStdio takes the protocol's pipes away from the module and returns them. From then
// on, what the module or one of its child processes prints goes to usher's log, and
// reading finds nothing. Node can't duplicate descriptors, but Unix opens them by name.
function takeStdio() {
  const input = fs.openSync('/dev/fd/0', 'r')
  const output = fs.openSync('/dev/fd/1', 'a')
  fs.closeSync(0)
  // This takes the lowest free number: 0.
  fs.openSync('/dev/null', 'r')
  fs.closeSync(1)
  fs.openSync('/dev/fd/2', 'a')
  return { input, output }
}

// log writes a record to stderr, which is usher's log. usher turns each \v into a new line.
function log(text) {
  process.stderr.write(text.replaceAll('\n', '\v') + '\n')
}

// write sends one line, all of it before it returns, because the module may end the
// process at any time.
function write(line) {
  const bytes = Buffer.from(line + '\n')
  let at = 0
  while (at < bytes.length) {
    try {
      at += writeSync(pipes.output, bytes, at)
    } catch (err) {
      // usher is gone.
      if (err.code !== 'EAGAIN') process.exit(0)
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2)
    }
  }
}

function send(message) {
  write(stringify({ jsonrpc: '2.0', ...message }))
}

// ---- The protocol

// calls has the calls in progress, by request id.
const calls = new Map()
// asks has the functions that take the client's answers, by the ids of the asks.
const asks = new Map()
let asked = 0
// current has the call that the running code belongs to.
const current = new AsyncLocalStorage()
// methods has the methods by name.
let methods
// parts has the beginning of an incomplete line.
let parts = []
// about is the module's description, of which usher uses the first sentence.
let about = ''
// problems has notes on the functions, for their author.
const problems = new Set()

// onUncaught logs an error that nobody catches, and fails the call that it belongs to,
// which might wait forever otherwise. The process goes on, for the sake of other calls.
function onUncaught(err) {
  log(`uncaught: ${stackOf(err)}`)
  current.getStore()?.settle(failure(messageOf(err)))
}
process.on('uncaughtException', onUncaught)
process.on('unhandledRejection', onUncaught)

// onData handles a chunk of input.
function onData(chunk) {
  let end
  while ((end = chunk.indexOf('\n')) >= 0) {
    receive(Buffer.concat([...parts, chunk.subarray(0, end)]).toString())
    parts = []
    chunk = chunk.subarray(end + 1)
  }
  parts.push(chunk)
}

// onEnd ends the process, as nobody waits for an answer any more. It lets the calls begin
// whose lines came just before: a person may have piped them in.
function onEnd() {
  setImmediate(() => process.exit(0))
}

function receive(line) {
  const { id, method, params, ...answer } = JSON.parse(line)
  if (method === 'notifications/cancelled') {
    calls.get(params.requestId)?.cancel()
  } else if (method === undefined) {
    asks.get(id)?.(answer)
  } else if (method === 'tools/call' && methods.has(params.name)) {
    const call = new Call(id, params)
    current.run(call, () => call.run(methods.get(params.name), params.arguments ?? {}))
  } else if (id !== undefined) {
    const error = { code: -32601, message: `unknown method or tool in ${method}` }
    const result = reply(method, params)
    reportFiles()
    send(result ? { id, result } : { id, error })
  }
}

// reply returns the result of a request that calls no method, null if it's unknown.
function reply(method, params) {
  switch (method) {
    case 'initialize':
      return {
        protocolVersion: params.protocolVersion,
        capabilities: {
          tools: {},
          experimental: { 'usher/problems': { problems: [...problems] } },
        },
        serverInfo: { name, version: '1' },
        instructions: about,
      }
    case 'tools/list':
      return { tools: [...methods.values()].map(method => method.tool) }
  }
  return null
}

// ---- Calls

// A Call is one tools/call in progress. After its answer nothing more is sent for it.
// After a cancellation only its end is sent, because usher counts running calls.
class Call {
  // ended says that the call was answered or cancelled.
  ended = false
  cancelled = false
  // stopAsking ends the wait for the client's answer.
  stopAsking = null

  constructor(id, params) {
    this.id = id
    this.token = params._meta?.progressToken
    calls.set(id, this)
  }

  async run(method, args) {
    try {
      let value = await Reflect.apply(method.run, method.holder, method.inOrder(args))
      const tag = Object.prototype.toString.call(value)
      if (/^\[object (Async)?Generator\]$/.test(tag)) value = await this.drive(value)
      if (!this.ended) this.settle(result(value))
    } catch (err) {
      log(`${method.tool.name}: ${stackOf(err)}`)
      this.settle(failure(messageOf(err)))
    } finally {
      calls.delete(this.id)
      if (this.cancelled) send({ id: this.id, result: {} })
    }
  }

  // end ends the call, and the wait for the client's answer.
  end() {
    this.ended = true
    this.stopAsking?.()
  }

  // cancel ends the call. It tells usher that this thread is not blocked.
  cancel() {
    this.cancelled = true
    this.end()
    send({ method: 'usher/cancelled', params: { requestId: this.id } })
  }

  // settle answers the call, once. The result is JSON.
  settle(result) {
    if (this.ended) return
    this.end()
    reportFiles()
    write(`{"jsonrpc":"2.0","id":${stringify(this.id)},"result":${result}}`)
  }

  // drive runs a generator to its end and returns its result. The generator yields
  // progress, log messages, and requests to the client, whose answers it gets back.
  async drive(steps) {
    let resume = () => steps.next()
    for (;;) {
      const { done, value } = await resume()
      if (done) return value
      // Let other calls and a cancellation proceed, even if the generator never waits.
      await new Promise(setImmediate)
      if (this.ended) return steps.return()
      try {
        const answer = await this.take(value)
        resume = () => steps.next(answer)
      } catch (err) {
        resume = () => steps.throw(err)
      }
      if (this.ended) return steps.return()
    }
  }

  // take handles what a generator yielded. It returns the client's answer to an ask.
  take(value) {
    if (hasOnly(value, 'ask', 'params')) return this.ask(value)
    if (hasOnly(value, 'progress', 'total', 'message')) return this.progress(value)
    if (hasOnly(value, 'log', 'level')) return this.message(value)
    const given = kind(value) === 'object' ? `{ ${Object.keys(value).join(', ')} }` : kind(value)
    const known = '{ ask, params }, { progress, total, message } or { log, level }'
    throw new TypeError(`unknown yield of ${given}: want ${known}, and return the result`)
  }

  // ask sends a request to the client, and waits for the answer or the end of the call.
  async ask({ ask: method, params = {} }) {
    if (kind(params) !== 'object') throw new TypeError('ask: params must be an object')
    const id = `ask-${++asked}`
    // This tells usher which call, and so which client, the request belongs to.
    const _meta = { ...params._meta, 'usher/call': this.id }
    write(toJSON({ jsonrpc: '2.0', id, method, params: { ...params, _meta } }))
    const answer = new Promise(resolve => {
      asks.set(id, resolve)
      this.stopAsking = resolve
    })
    const { error, result } = (await answer) ?? {}
    asks.delete(id)
    if (error) throw new Error(error.message)
    return result
  }

  progress({ progress, total, message }) {
    if (this.token === undefined || !Number.isFinite(progress)) return
    const params = { progressToken: this.token, progress, total, message }
    send({ method: 'notifications/progress', params })
  }

  message({ log: data, level = 'info' }) {
    try {
      data = JSON.parse(toJSON(data) ?? 'null')
    } catch {
      data = inspect(data)
    }
    const params = {
      level,
      logger: name,
      data,
      _meta: { 'usher/call': this.id },
    }
    send({ method: 'notifications/message', params })
  }
}

// hasOnly reports whether value is an object with the key, and with no other keys than
// the optional ones.
function hasOnly(value, key, ...optional) {
  if (kind(value) !== 'object' || !Object.hasOwn(value, key)) return false
  return Object.keys(value).every(k => k === key || optional.includes(k))
}

// ---- Results, as JSON text, so that a large one is encoded only once

function failure(message) {
  return stringify({ content: [{ type: 'text', text: message }], isError: true })
}

// result returns the answer to a call that returned value.
function result(value) {
  try {
    const kind = isBytes(value) ? 'bytes' : 'value'
    return `{"_meta":{"usher/${kind}":${toJSON(value) ?? 'null'}}}`
  } catch (err) {
    const why = /circular/.test(err.message) ? 'it contains itself' : err.message
    return failure(`the result can't be written as JSON: ${why}`)
  }
}

// toJSON does what JSON.stringify does, but writes bytes as base64, and throws for other
// values that JSON.stringify drops or changes.
function toJSON(value) {
  return stringify(value, function (key, v) {
    if (isBytes(this[key])) return Buffer.from(this[key]).toString('base64')
    const type = typeof v
    let what = ''
    if (type === 'number' && !Number.isFinite(v)) what = String(v)
    if (['bigint', 'function', 'symbol'].includes(type)) what = `a ${type}`
    if (v instanceof Map || v instanceof Set) what = `a ${v.constructor.name}`
    if (what) throw new TypeError(`${key === '' ? 'it' : stringify(key)} is ${what}`)
    return v
  })
}

function isBytes(value) {
  return value instanceof Uint8Array || value instanceof ArrayBuffer
}

// messageOf returns the message of a thrown value, which may be anything.
function messageOf(err) {
  try {
    let text = err
    if (typeof err?.message === 'string') text = err.message || err.name
    else if (typeof err !== 'string') text = toJSON(err) ?? String(err)
    return String(text || 'the method failed without a message')
  } catch {
    return 'the method failed with something that has no text'
  }
}

// stackOf returns a thrown value with its stack and its causes, for the log. It leaves out
// the calls of this file and of Node.
function stackOf(err) {
  try {
    const stack = err?.cause ? undefined : err?.stack
    return String(stack ?? inspect(err)).replace(/\n +at[^\n]*(shim\.mjs|[ (]node:).*/g, '')
  } catch {
    return messageOf(err)
  }
}

function kind(value) {
  if (value === null) return 'null'
  return Array.isArray(value) ? 'array' : typeof value
}

// ---- Loading the file

// files has the paths of files that the module has loaded, except packages, and that usher
// does not know yet.
const files = new Set()

// watchFiles collects in files what is imported or required from now on, once each. It
// needs Node.js 22.15.
function watchFiles() {
  const seen = new Set([pathToFileURL(file).href])
  module.registerHooks?.({
    load(url, context, next) {
      if (url.startsWith('file:') && !url.includes('/node_modules/') && !seen.has(url)) {
        seen.add(url)
        files.add(fileURLToPath(url))
      }
      return next(url, context)
    },
  })
}

// reportFiles tells usher about files.
function reportFiles() {
  if (files.size === 0) return
  send({ method: 'usher/parts', params: { paths: [...files] } })
  files.clear()
}

// load runs the file and returns its methods by name.
async function load() {
  const { require_module: recent, typescript } = process.features
  if (base.endsWith('ts') && !typescript) refuse('TypeScript needs Node.js 22.18 or newer')
  if (!recent) refuse('JavaScript needs Node.js 20.19 or newer, or 22.12')
  if (/modelcontextprotocol\/(sdk\/)?server[^]*\bnew (Mcp)?Server\(/.test(text)) {
    refuse('it is an MCP server: rename it, and host it by a .mcp.json, with the command node')
  }
  watchFiles()
  const exported = await import(pathToFileURL(file).href)
  if (text && !withoutTypes()) {
    refuse('remove --experimental-transform-types, because usher reads only types that Node strips')
  }
  return findMethods(exported)
}

// refuse ends the process with one line for the user.
function refuse(need) {
  log(`${base}: ${need}; this is ${process.version}`)
  process.exit(1)
}

// remedies says what to do about a message of Node.
const remedies = [
  [/strip-only mode$/, 'Node only removes types: use a union of strings, or plain fields'],
  [
    /^Unexpected token 'export'|outside a module$/,
    'does package.json say "type": "commonjs"? Run npm pkg set type=module, or name it .usher.mjs',
  ],
  [/not provide an export named/, 'a type needs: import type'],
  [/^Cannot find module .[./]|^Directory import/, 'Node needs the whole path, such as ./lib.ts'],
  [/^Cannot find (package|module) '(?!src')@?\w/, 'npm install it'],
  [/^Cannot find package '(@\/|[~$]|src')/, 'use a relative path'],
  [/^(module|exports) is not/, 'write export'],
  [/^Invalid or unexpected token/, 'Node reads no decorators'],
  [/regexp literal$|token '<'$/, 'Node reads no JSX'],
]

// loadFailure returns why the file could not be loaded, on one line that begins with
// the file and the line number, as those of compilers do.
function loadFailure(err) {
  const stack = String(err?.stack ?? '')
  const message = messageOf(err).split('\n')[0]
  let line = placeIn(stack, file) ?? placeIn(stack, pathToFileURL(file).href)
  let elsewhere = ''
  // The stack of a syntax error begins with the broken file, here an imported one.
  const imported = /^(?:file:\/\/)?(\/.*|[A-Z]:.*):(\d+)\n/.exec(stack)
  if (imported && path.resolve(imported[1]) !== file) {
    elsewhere = ` (${path.basename(imported[1])}:${imported[2]})`
  }
  if (/MODULE_NOT_FOUND$/.test(err?.code)) {
    const [, wanted] = /'(?:[^']*[/\\])?([^']+)'/.exec(message) ?? []
    line ??= text.split('\n').findIndex(l => l.includes(wanted)) + 1
  }
  if (!line && err instanceof SyntaxError) {
    line = syntaxErrorLine()
    if (!line) elsewhere ||= ' (in a file that it imports)'
  }
  for (const [pattern, remedy] of remedies) if (pattern.test(message)) elsewhere += ` (${remedy})`
  const label = err instanceof Error ? `${err.name}: ` : ''
  return `${base}${line ? ':' + line : ''}: ${label}${message}${elsewhere}`
}

// syntaxErrorLine asks another Node for the line of a syntax error in the file. That
// Node runs nothing of the file. The error itself doesn't contain the line.
function syntaxErrorLine() {
  const args = ['--no-warnings', '--input-type=module', '--check']
  const options = { input: withoutTypes(), encoding: 'utf8' }
  return placeIn(String(spawnSync(process.execPath, args, options).stderr), '[stdin]')
}

// placeIn returns the number after the first "place:" in text.
function placeIn(text, place) {
  const [, rest] = text.split(place + ':', 2)
  return /^\d+/.exec(rest)?.[0]
}

// ---- Finding the methods

// findMethods returns the methods that the module exports, by name, in the order of the
// source. The default export of a CommonJS module is module.exports.
function findMethods({ default: whole, 'module.exports': _, ...named }) {
  const source = new Source()
  const found = new Map()

  function add(name, run, holder, from) {
    if (name.startsWith('_') || found.has(name)) return
    const isOther = isClass(run) && run !== whole
    if (isOther || source.isGroup(run)) skip(name, 'export functions, or a default class')
    if (!isFunction(run) || isClass(run)) return
    const place = source.locate(name, run, from)
    const method = place.hidden || source.method(name, run, place)
    if (method?.tool) found.set(name, { ...method, run, holder, ...place })
  }

  let classDoc = ''
  if (isClass(whole)) {
    const object = new whole()
    const { at, doc } = source.locate(whole.name, whole)
    classDoc = doc
    const { constructor, ...members } = Object.getOwnPropertyDescriptors(whole.prototype)
    for (const name of Object.keys(members)) add(name, members[name].value, object, at)
    for (const [name, value] of Object.entries(object)) {
      const isPublic = isFunction(value) && !/^_/.test(name)
      if (isPublic && !source.locate(name, value, at).hidden) skip(name, 'write it as a method')
    }
    for (const name of Object.getOwnPropertyNames(whole)) {
      if (isFunction(whole[name])) skip(name, 'remove the word static')
    }
  } else if (typeof whole === 'function') {
    if (whole.name && whole.name !== 'default') add(whole.name, whole)
    else skip('default', 'give it a name')
  } else if (kind(whole) === 'object') {
    for (const name of Object.keys(whole)) add(name, whole[name], whole)
    if (whole.constructor !== Object) add('default', whole)
  }
  for (const name of Object.keys(named)) add(name, named[name])

  const sorted = [...found].sort(([, a], [, b]) => a.start - b.start)
  const first = source.firstComment()
  const ofMethod = sorted.some(([, method]) => method.doc === first)
  about = ofMethod || !first ? classDoc : first
  return new Map(sorted)
}

// skip notes why something is not offered.
function skip(name, remedy) {
  problems.add(`${name} is not offered: ${remedy}`)
}

function isFunction(value) {
  return typeof value === 'function'
}

function isClass(f) {
  return isFunction(f) && /^class\b/.test(textOf(f))
}

// textOf returns the text of a function, which is a slice of its file without types.
function textOf(f) {
  return Function.prototype.toString.call(f)
}

// ---- Reading comments and types

const MISSING = Symbol('marks the schema of a type that includes undefined')
const PLAIN_TYPE = /^(string|number|integer|boolean)$/
// OF_FUNCTION matches a comment of a function, even if blank lines follow.
const OF_FUNCTION = /^(?![^]*@(callback|typedef))[^]*@(param|arg|return)/i
const DIRECTIVE = /^\s*\/[*/]+\s*(eslint|@ts-|prettier-|biome-|<reference).+/gm
const LICENCE = /^(@licen[sc]e|copyright|spdx|this file is part of)/i
// COMMENTS matches a comment: a block, or lines.
const COMMENTS = /\s*(\/\*[^]*?\*\/|(?:\/\/.*(\n[^\S\n]*(?=\/\/))?)+)/gy
// LINE_COMMENT matches the comment at the end of a line, or before a separator.
const LINE_COMMENT = /[^\S\n]*[;,]?[^\S\n]*(\/\/.*|\/\*.*?\*\/)[^\S\n]*(?=[;,})\n])/y
// TYPE_NAME matches the beginning of an alias or an interface, up to its name.
const TYPE_NAME =
  /(?:^|;)[ \t]*(?:export\s+)?(?:declare\s+)?(?:type|interface)\s+([\p{ID_Continue}$]+)/gmu
const SPACE = /(?:\s+|\/\/.*|\/\*[^]*?(?:\*\/|$))*/y
const NUMBER = /\.?\d[\w.]*/
const NAME = /[\p{ID_Continue}$]+/u
// The quotation marks are \x22, \x27 and \x60.
const STRING = /\x27(?:[^\\\x27\n]|\\[^])*\x27|\x22(?:[^\\\x22\n]|\\[^])*\x22/
const TEMPLATE =
  /\x60(?:[^\\\x60$]|\\[^]|\$(?!\{)|\$\{(?:\x27.*?\x27|\x22.*?\x22|[^}])*\})*\x60/
// TOKEN matches one of these or a mark, and nothing at the end of the text.
const TOKEN = new RegExp(
  [NUMBER, NAME, STRING, TEMPLATE, /=>|\.\.\.|[^]|$/].map(kind => kind.source).join('|'),
  'uy',
)

// withoutTypes returns the file's text without types, as Node runs it.
function withoutTypes() {
  try {
    return base.endsWith('ts') ? module.stripTypeScriptTypes(text) : text
  } catch {
    // An option makes Node transform the file.
    return ''
  }
}

// A Source reads the comments and types of the file. From code that it can't read, it
// tells less, without an error.
class Source {
  text = text
  // The text without types. Node blanks them, so offsets are the same as in the text.
  js = withoutTypes()
  // The aliases and interfaces by name: where the name ends, and the comment.
  types = new Map()
  // The types that are being written out.
  open = new Set()
  // The place where reading continues.
  pos = 0

  constructor() {
    for (const { 0: match, 1: name, index } of text.matchAll(TYPE_NAME)) {
      const at = index + match.length
      // Node blanks types.
      if (this.js.slice(at - name.length, at).trim() !== '') continue
      this.types.set(name, { at, doc: flat(this.docAbove(index)) })
    }
    for (const [comment] of text.matchAll(/\/\*\*[^]*?\*[/]/g)) {
      // docs has those of a type and its members.
      let docs
      for (const doc of paramDocs(clean(comment))) {
        if (doc.tag === 'typedef') this.types.set(doc.name, { docs: (docs = [doc]) })
        if (/^prop/.test(doc.tag)) docs?.push({ ...doc, name: `${docs[0].name}.${doc.name}` })
      }
    }
  }

  // ---- Functions and their comments

  // locate finds a function, whose text comes after an offset. It returns where its text
  // and its declaration begin, and what is known from these.
  locate(name, f, from) {
    const own = textOf(f)
    const first = this.js.indexOf(own, from)
    // Functions may have the same text. Then their names tell them apart.
    for (let at = first; at >= 0; at = this.js.indexOf(own, at + 1)) {
      const start = this.lineOf(at)
      const header = this.js.slice(start, at) + /^[^(=]*/.exec(own)[0]
      const words = header.match(/[\p{ID_Continue}$-]+/gu) ?? []
      if (words.includes(name) || words.includes(f.name)) return this.place(own, at, start)
    }
    // Another function has made this one. Its comment is where it gets its name.
    return this.place(own, first, this.assignment(name))
  }

  // place returns what locate does, for a function whose text begins at one offset, and
  // whose declaration at another. Both are -1 if they were not found.
  place(own, at, start) {
    const arrow = /^(?:async\s+)?(?=[\p{ID_Continue}$]+\s*=>)/u.exec(own)
    let params = at < 0 ? undefined : at + (arrow ? arrow[0].length : own.indexOf('(') + 1)
    if (start < 0) return { at, params, doc: '', start: Number.MAX_VALUE }

    const hidden = /\b(private|protected)\s/.test(text.slice(start, Math.max(at, 0)))
    // What Node has blanked above a function may be an overload: it says what callers see.
    const end = this.js.slice(0, start).trimEnd().length
    const blanked = text.slice(end, start)
    if (/^\s*((export|default|async)\s+)*function\b/.test(blanked)) {
      start = end + blanked.search(/\S/)
      params = text.indexOf('(', start) + 1
    }
    return { at, params, hidden, start, doc: this.docAbove(start) }
  }

  // lineOf returns where the line with a declaration begins, or its part of this line. A
  // line that ends with one of =:( belongs to the next one.
  lineOf(at) {
    const before = this.js.slice(0, at)
    const ends = [...'\n;{},/'].map(mark => before.lastIndexOf(mark))
    const start = Math.max(...ends) + 1
    const above = before.slice(0, start).trimEnd()
    return /^[=:(]/.test(above.at(-1)) ? this.lineOf(above.length) : start
  }

  // assignment returns where a name gets its value, -1 if it's not found.
  assignment(name) {
    const escaped = name.replace(/[^\w]/g, '\\$&')
    const before = '(?:^|\\b(?:const|let|var)\\s|\\bexports\\.)[ \\t]*'
    const match = new RegExp(`${before}${escaped}\\s*[=:]`, 'm').exec(this.js)
    return match ? this.lineOf(match.index) : -1
  }

  // docAbove returns the text of the comment directly above an offset: /** ... */, or
  // lines of //. It ignores directives to linters and compilers.
  docAbove(at) {
    const lines = []
    for (;;) {
      const above = this.text.slice(0, at).trimEnd()
      const gap = this.text.slice(above.length, at)
      const isBlock = above.endsWith('*/')
      at = isBlock ? above.lastIndexOf('/*') : above.lastIndexOf('\n') + 1
      const comment = above.slice(at).trim()
      const before = above.slice(above.lastIndexOf('\n', at - 1) + 1, at)
      const isApart = /\n\s*\n/.test(gap) && !(isBlock && OF_FUNCTION.test(comment))
      if (isApart || (gap.includes('\n') && before.trim() !== '')) break
      if (comment.search(DIRECTIVE) === 0) continue
      if (!comment.startsWith(isBlock ? '/**' : '//')) break
      if (isBlock && lines.length > 0) break
      lines.unshift(clean(comment))
      if (isBlock) break
    }
    return lines.join('\n').trim()
  }

  // firstComment returns the comment at the beginning of the file that is no licence, unless it
  // documents a type, or a function that is no method.
  firstComment() {
    let end = /^(#!.*)?\s*([\x22\x27]use strict[\x22\x27];?)?/.exec(text)[0].length
    for (const [all, comment] of text.slice(end).matchAll(COMMENTS)) {
      end += all.length
      const doc = clean(comment.replace(DIRECTIVE, '')).trim()
      if (doc === '' || LICENCE.test(doc)) continue
      const below = /^\n(?!import)([a-z]+ )*(function|type|interface)\b/
      return below.test(text.slice(end)) || OF_FUNCTION.test(doc) ? '' : doc
    }
    return ''
  }

  // lineComment returns the text of the comment at the end of the line.
  lineComment() {
    LINE_COMMENT.lastIndex = this.pos
    return clean(LINE_COMMENT.exec(this.text)?.[1] ?? '')
  }

  // isGroup reports whether an exported value is of a class of the file, or has functions, at most
  // some levels deep. It calls no getter, which may connect to something or fail.
  isGroup(value, depth = 3) {
    const object = Object(value)
    const type = Object.getPrototypeOf(object)?.constructor
    if (type !== Object) return isClass(type) && this.js.includes(textOf(type))
    const members = Object.values(Object.getOwnPropertyDescriptors(object)).map(m => m.value)
    return depth > 0 && members.some(v => isFunction(v) || this.isGroup(v, depth - 1))
  }

  // ---- Tools and their schemas

  // method returns the MCP definition of a function and the order of its arguments, or
  // notes why it is not offered. usher reads the tags that are left in the description, and
  // notes each @param.
  method(name, run, { doc, params }) {
    this.name = name
    const tags = paramDocs(doc)
    const docs = tags.filter(({ tag }) => /^(param|arg)/.test(tag))
    if (params === undefined && run.length > 1) return skip(name, 'declare it in this file')
    const list = this.parameters(params)
    this.match(list, docs)
    const one = list[0] ?? {}
    const { type, anyOf } = one.schema ?? {}
    // A webhook gets the fields of its body, whatever is known of its parameter.
    const isHook = /^handle|@webhook/i.test(name + doc)
    const isOpen = isHook ? !anyOf : !one.schema
    const mayBeObject = type ? type === 'object' : isOpen && one.name !== '_webhook'
    const isObject = list.length === 1 && (one.fields || one.rest || mayBeObject)
    const schema = isObject ? this.oneObject(one, docs) : this.byName(list)
    if (!schema) return
    const lines = tags.map(({ line, used }) => (used ? line.replace(/@\w+/, '@prop') : line))
    const description = lines.join('').trim()
    const tool = { name, ...(description && { description }), inputSchema: schema }
    const inOrder = args =>
      isObject ? [args] : list.flatMap(p => (p.rest ? (args[p.key] ?? []) : [args[p.key]]))
    return { tool, inOrder }
  }

  // parameters reads a list of parameters, unless it is in another file.
  parameters(at) {
    if (at === undefined) return [{}]
    const list = []
    const ends = this.text[at - 1] === '(' ? [')', ''] : ['=>', '']
    this.pos = at
    while (!this.is(...ends)) {
      const p = { rest: this.eat('...'), name: this.key() }
      if (this.is('{')) this.pattern(p)
      else this.skip()
      p.optional = this.eat('?') || p.rest
      p.typed = this.eat(':')
      if (p.typed) p.schema = this.reading(p.name, () => this.type(',', '=', ...ends))
      if (this.eat('=')) Object.assign(p, { optional: true, value: this.value(',', ...ends) })
      // TypeScript takes the type from the default.
      const type = kind(p.value)
      const isPlain = /^(string|number|boolean|array)$/.test(type)
      if (isPlain && !p.typed && base.endsWith('ts')) p.schema = { type }
      this.eat(',')
      if (p.name !== 'this') list.push(p)
    }
    return list
  }

  // pattern reads { a, b: c = 1 }: the fields that it takes out of an object, with their
  // defaults, and whether there is a name for the rest.
  pattern(p) {
    p.fields = Object.create(null)
    this.eat('{')
    while (!this.eat('}', '')) {
      const key = this.key()
      p.takesRest = this.is('...')
      while (!this.is(',', '}', '=', '')) this.skip()
      const optional = this.eat('=')
      const value = this.value(',', '}')
      if (key !== undefined) p.fields[key] = { optional, value }
      this.eat(',')
    }
  }

  // value skips an expression, and returns its value if it is a literal.
  value(...ends) {
    const start = this.pos
    while (!this.is('', ...ends)) this.skip()
    return literal(this.text.slice(start, this.pos))
  }

  // match finds the @param of each parameter: that of its name or, for a pattern, the one in
  // its place. One that names nothing counts for the parameter in its place.
  match(list, docs) {
    const roots = docs.filter(doc => !doc.name.includes('.'))
    for (const [i, p] of list.entries()) {
      const root = roots[i]
      const isKnown = list.some(q => q.name === root?.name || root?.name in (q.fields ?? {}))
      p.key = p.name ?? (isKnown ? undefined : root?.name)
      if (!isKnown && root && list.length > 1) docs.push({ ...root, name: p.key })
      p.schema = this.described(p.key, p.schema, docs, p)
    }
  }

  // described returns a schema with what the @param of a name says, undefined for nothing.
  described(name, own, docs, p = {}) {
    const doc = docs.find(other => other.name === name)
    let schema = own
    if (doc) {
      const isTyped = !doc.type || (own && !isAny(own))
      const read = () => this.elsewhere(doc.type, 0, () => this.type())
      const typed = isTyped ? {} : this.reading(name, read)
      // A pattern takes nothing apart that is no object.
      doc.used = !p.fields || isAny(typed) || typed.type === 'object'
      schema = { ...typed, ...own }
      if (doc.text) schema.description = doc.text
      if (doc.value !== undefined) schema.default = doc.value
      if (doc.optional) schema[MISSING] = true
    }
    if (p.fields) schema = withFields(schema ?? {}, p)
    const isList = schema?.type === 'array'
    const whole = { ...(isList ? schema.items : schema) }
    const isOpen = !whole.properties || p.takesRest
    this.addMembers(whole, `${name}${isList ? '[]' : ''}.`, docs, () => isOpen)
    if (isList) return { ...schema, items: whole }
    return schema || whole.type ? whole : undefined
  }

  // addMembers adds what docs say about an object's members, whose names begin with prefix,
  // to its schema. mayAdd reports whether a member may be new.
  addMembers(schema, prefix, docs, mayAdd) {
    for (const { name } of docs) {
      const key = name.startsWith(prefix) ? name.slice(prefix.length) : ''
      const own = schema.properties?.[key]
      if (!/^[^.[]+$/.test(key) || (!own && !mayAdd(key))) continue
      const part = this.described(name, own, docs)
      addMember(schema, key, part)
      if (!own || part[MISSING]) setRequired(schema, key, !part[MISSING])
    }
  }

  // oneObject returns the schema of the object that a function takes.
  oneObject(p, docs) {
    const schema = p.schema?.type === 'object' ? { ...p.schema } : { type: 'object' }
    // The tool has a description.
    delete schema.description
    this.addMembers(schema, '', docs, () => p.takesRest)
    if (!schema.properties && !schema.additionalProperties) {
      problems.add(`${this.name} takes one object, but nothing names its fields`)
    }
    if (!p.fields || p.takesRest) schema.additionalProperties ??= true
    return schema
  }

  // byName returns the schema of parameters by name, if all of them are described.
  byName(list) {
    const schema = { type: 'object', properties: Object.create(null) }
    const bare = []
    for (const { key, name, schema: own, rest, value, optional } of list) {
      if (name === '_webhook') continue
      if (!key || !own) bare.push(key ?? '{ … }')
      const isItem = rest && own?.type !== 'array'
      schema.properties[key] = isItem ? { type: 'array', items: own } : { default: value, ...own }
      if (!optional && !own?.[MISSING]) setRequired(schema, key, true)
    }
    if (bare.length === 0) return schema
    skip(this.name, `describe each parameter by a type or a @param: ${bare.join(', ')}`)
  }

  // reading returns what read returns, and notes a type in it that usher does not know.
  reading(key = 'it', read) {
    const outer = this.unknown
    this.unknown = ''
    const schema = read()
    if (this.unknown && key !== 'this') {
      problems.add(`${this.name}: ${key} accepts any value for the type ${flat(this.unknown)}`)
    }
    this.unknown = outer
    return schema
  }

  // ---- Tokens, from this.pos on

  // token returns the next token, which is empty at the end, and its place.
  token() {
    SPACE.lastIndex = this.pos
    SPACE.test(this.text)
    TOKEN.lastIndex = SPACE.lastIndex
    const [token] = TOKEN.exec(this.text)
    return { token, start: SPACE.lastIndex, end: TOKEN.lastIndex }
  }

  is(...tokens) {
    return tokens.includes(this.token().token)
  }

  // eat skips the token if it is one of tokens, and reports whether it was.
  eat(...tokens) {
    const found = this.is(...tokens)
    if (found) this.take()
    return found
  }

  // take returns a token and skips it.
  take() {
    const { token, end } = this.token()
    this.pos = end
    return token
  }

  // skip skips a token, or everything up to the bracket that closes it.
  skip() {
    let depth = 0
    do {
      const token = this.take()
      if (/^[([{]/.test(token)) depth++
      if (/^[)\]}]/.test(token)) depth--
    } while (depth > 0 && !this.is(''))
  }

  // onNewLine reports whether the token is the first on its line.
  onNewLine() {
    return this.text.slice(this.pos, this.token().start).includes('\n')
  }

  // key returns the name of a property, undefined if the token is none.
  key() {
    const { token } = this.token()
    if (/^[\x22\x27]./.test(token)) return token.slice(1, -1).replace(/\\(.)/g, '$1')
    return NAME.test(token) && !token.startsWith('`') ? token : undefined
  }

  // ---- Types. A type that can't be read has the schema {}.

  // type reads a type and skips what it can't read, up to one of the tokens ends.
  type(...ends) {
    const start = this.pos
    let schema = this.union()
    while (!this.is('', ...ends) && !(ends.includes('\n') && this.onNewLine())) {
      schema = {}
      this.skip()
      this.unknown = this.text.slice(start, this.pos)
    }
    return schema
  }

  // elsewhere returns what read returns in another text or at another place.
  elsewhere(other, pos, read) {
    const back = { text: this.text, pos: this.pos }
    Object.assign(this, { text: other, pos })
    const found = read()
    Object.assign(this, back)
    return found
  }

  // list reads items with a separator between them. One may precede the first item.
  list(separator, read) {
    const items = []
    this.eat(separator)
    do items.push(read())
    while (this.eat(separator))
    return items
  }

  union() {
    return joined(this.list('|', () => this.intersection()))
  }

  intersection() {
    return merged(this.list('&', () => this.postfix()))
  }

  postfix() {
    let schema = this.primary()
    while (this.is('[') && !this.onNewLine()) {
      this.take()
      const { properties, items } = schema
      const isList = this.is(']')
      const { enum: keys } = this.type(']')
      if (isList) schema = { type: 'array', items: schema }
      else schema = keys ? joined(keys.map(key => properties?.[key] ?? {})) : (items ?? {})
      this.take()
    }
    return schema
  }

  // primary reads a type without operators after it. It leaves a mark that begins no type.
  primary() {
    if (this.eat('*')) return {}
    if (this.eat('!')) return this.postfix()
    if (this.eat('?')) return joined([this.postfix(), { [MISSING]: true }])
    const { token } = this.token()
    if (token === '{') return this.object()
    if (token === '(') {
      this.take()
      const schema = this.type(')')
      this.take()
      return schema
    }
    if (token === '[') {
      this.skip()
      return { type: 'array' }
    }
    const key = this.key()
    const isNegative = this.eat('-')
    if (/^\.?\d/.test(this.token().token)) {
      const value = Number(this.take())
      return { type: 'number', enum: [isNegative ? -value : value] }
    }
    if (key === undefined) return {}
    this.take()
    return key === token ? this.word(key) : { type: 'string', enum: [key] }
  }

  word(text) {
    if (/^(true|false)$/.test(text)) return { type: 'boolean', enum: [text === 'true'] }
    // usher takes a null for a parameter that is left out.
    if (/^(undefined|void|null)$/.test(text)) return { [MISSING]: true }
    const list = text === 'typeof' && this.constant(this.take())
    if (list) return list
    while (this.eat('.')) if (!this.is('<')) text = this.take()
    let args = []
    if (this.eat('<')) {
      args = this.list(',', () => this.type(',', '>'))
      this.take()
    }
    if (this.types.has(text)) return this.declared(text, this.types.get(text))
    // JSDoc has String too.
    const name = text.toLowerCase()
    if (PLAIN_TYPE.test(name)) return { type: name }
    switch (name) {
      case 'array':
      case 'readonlyarray':
        return { type: 'array', items: args[0] }
      case 'object':
      case 'record':
        return { type: 'object', additionalProperties: args[1] }
      case 'partial':
        return { ...args[0], required: undefined }
      case 'readonly':
        return args[0] ?? this.postfix()
    }
    if (!/^(any|unknown)$/.test(name)) this.unknown = text
    return {}
  }

  // constant returns the type of a list of texts that the file declares as const, undefined for
  // anything else.
  constant(name) {
    const list = new RegExp(`\\bconst ${name} = \\[([^\\]]*?),?\\s*\\] as const`).exec(text)?.[1]
    const choices = list?.replace(/(?<=[\x22\x27]\s*),/g, '|')
    return list && { type: 'array', items: this.elsewhere(choices, 0, () => this.type()) }
  }

  // declared returns the schema of a type that the file declares. Inside of itself, the type
  // is any value.
  declared(name, { at, doc, docs }) {
    if (this.open.has(name)) {
      this.unknown = `${name} inside of itself`
      return {}
    }
    this.open.add(name)
    const read = () => this.elsewhere(text, at, () => this.declaration(name))
    const schema = docs ? this.described(name, {}, docs) : read()
    this.open.delete(name)
    return doc ? { ...schema, description: doc } : schema
  }

  // declaration reads what follows the name of a type.
  declaration(name) {
    if (this.eat('=')) return this.type(';', '\n')
    if (this.is('<')) {
      this.unknown ||= name
      return {}
    }
    const bases = this.eat('extends') ? this.list(',', () => this.postfix()) : []
    const known = bases.filter(base => base.properties)
    return merged([...known, this.object()])
  }

  // object reads { a: string; b?: number }.
  object() {
    const schema = { type: 'object' }
    this.take()
    while (!this.eat('}', '')) {
      if (this.eat(';', ',')) continue
      const { start } = this.token()
      this.eat('readonly')
      const key = this.key()
      this.skip()
      const isIndex = /^(readonly\s+)?\[\s*\w+\s*:/.test(this.text.slice(start, this.pos))
      const optional = this.eat('?')
      const isMethod = this.is('(', '<')
      this.eat(':')
      const part = this.reading(key, () => this.type(';', ',', '}', '\n'))
      if (isIndex) schema.additionalProperties = part
      if (key === undefined || isMethod) continue
      const doc = flat(this.docAbove(start) || this.lineComment())
      addMember(schema, key, { ...part, description: doc || part.description })
      setRequired(schema, key, !optional && !part[MISSING])
    }
    return schema
  }
}

// withFields returns the schema of an object with the fields that a pattern takes out of it.
function withFields({ properties, ...schema }, { fields, typed }) {
  const whole = { ...schema, type: 'object', properties: properties ?? Object.create(null) }
  for (const [key, { optional, value }] of Object.entries(fields)) {
    const own = properties?.[key] ?? {}
    whole.properties[key] = value === undefined ? own : { ...own, default: value }
    if (optional || !(typed || properties)) setRequired(whole, key, !optional)
  }
  return whole
}

// addMember adds a member of an object to its schema.
function addMember(schema, key, part) {
  schema.type = 'object'
  schema.properties ??= Object.create(null)
  schema.properties[key] = part
}

// setRequired says whether an object's member is required.
function setRequired(schema, key, isRequired) {
  const others = (schema.required ?? []).filter(other => other !== key)
  if (isRequired) others.push(key)
  schema.required = others.length > 0 ? others : undefined
}

// isAny reports whether a schema accepts any value.
function isAny(schema) {
  return !schema.type && !schema.anyOf
}

// literal returns the value of a literal, undefined for other code.
function literal(code) {
  try {
    return JSON.parse(code.trim().replace(/^\x27([^\x22\x27\\]*)\x27$/, '"$1"')) ?? undefined
  } catch {}
}

// joined returns the union of schemas.
function joined(all) {
  const missing = all.some(s => s[MISSING]) ? { [MISSING]: true } : {}
  const parts = all.filter(s => !s[MISSING] || Object.keys(s).length > 0)
  if (parts.length === 0 || parts.some(isAny)) return missing
  if (parts.length === 1) return { ...parts[0], ...missing }
  const isSimple = s => Object.keys(s).every(key => /^(type|enum)$/.test(key))
  if (!parts.every(isSimple)) return { anyOf: parts, ...missing }
  const types = [...new Set(parts.flatMap(s => s.type))]
  const type = types.length === 1 ? types[0] : types
  if (!parts.every(s => s.enum)) return { type, ...missing }
  return { type, enum: [...new Set(parts.flatMap(s => s.enum))], ...missing }
}

// merged returns the intersection of schemas: for objects, all their properties.
function merged(parts) {
  const plain = parts.find(s => s.type && s.type !== 'object')
  // This is such a type as string & { brand: ... }.
  if (plain) return plain
  if (parts.length === 1) return parts[0]
  const objects = parts.filter(s => s.properties)
  if (objects.length === 0) return {}
  const properties = Object.assign(Object.create(null), ...objects.map(s => s.properties))
  const schema = { type: 'object', properties }
  for (const key of objects.flatMap(s => s.required ?? [])) setRequired(schema, key, true)
  return schema
}

// clean returns the text of a comment without its marks.
function clean(text) {
  return text
    .trim()
    .replace(/^\/\*[*!]*|\*+\/$/g, '')
    .replace(/^[^\S\n]*(\*|\/\/+) ?|[^\S\n]+$/gm, '')
    .replace(/\{@(?:link\w*\s+([^{}]*)|[^{}]*)\}/g, '$1')
}

function flat(text) {
  return text.replace(/\s+/g, ' ').trim()
}

// PARAM matches @param, @typedef and @property: the type in braces; the name, in brackets
// and with its default if it is optional; the text.
const PARAM = new RegExp(
  /^\s*@(param|arg|argument|property|prop|typedef):?\s*/.source +
    /(?:\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}\s*)?/.source +
    /(?:\[\s*([^\s=\]]+)\s*(?:=((?:[^[\]]|\[[^\]]*\])*))?\]|([^\s{[-]\S*))\s*(?:- )?([^]*)/.source,
  'i',
)

// paramDocs splits a comment at its tags, and those that PARAM matches into their parts.
function paramDocs(doc) {
  return doc.split(/^(?=[^\S\n]*@[a-z])/im).map(line => {
    const [, tag, type = '', optional, value, name = optional, text] = PARAM.exec(line) ?? []
    if (!name) return { line }
    return {
      line,
      tag: tag.toLowerCase(),
      name: name.replace('...', ''),
      type: type.replace(/^\.\.\.|=$/g, ''),
      optional: optional || type.endsWith('='),
      value: value && (literal(value) ?? value.trim()),
      text: flat(text),
    }
  })
}

// ---- The start, after everything has been declared

try {
  methods = await load()
} catch (err) {
  log(loadFailure(err))
  process.exit(1)
}
const input = new net.Socket({ fd: pipes.input, writable: false })
input.on('data', onData).on('error', onEnd).on('end', onEnd)
