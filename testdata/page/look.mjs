// Looks at a page in Chromium: in narrow and wide windows, light and dark. Prints what measure.js says of each, and
// what the browser complains of. Arguments: the page, and a folder for the browser.

import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'

const [page, folder] = process.argv.slice(2)
const measure = readFileSync(new URL('measure.js', import.meta.url), 'utf8')
const flags = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run']
const args = [...flags, '--user-data-dir=' + folder, '--remote-debugging-pipe', 'about:blank']
const browser = spawn('chromium', args, { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] })
const answers = new Map() // by the id of a command
let sessionId
let loaded = () => {}

let text = ''
browser.stdio[4].setEncoding('utf8').on('data', part => {
  const messages = (text + part).split('\0')
  text = messages.pop()
  for (const message of messages.map(JSON.parse)) {
    answers.get(message.id)?.(message.result)
    if (message.method === 'Page.loadEventFired') loaded()
    if (message.method === 'Log.entryAdded') {
      const complaint = message.params.entry.text
      if (!complaint.includes('status of 400')) console.log(complaint) // of the page itself
    }
  }
})

/** Gives the browser a command. */
function tell(method, params = {}) {
  const id = answers.size + 1
  browser.stdio[3].write(JSON.stringify({ id, method, params, sessionId }) + '\0')
  return new Promise(done => answers.set(id, done))
}

const { targetId } = await tell('Target.createTarget', { url: 'about:blank' })
const attached = await tell('Target.attachToTarget', { targetId, flatten: true })
sessionId = attached.sessionId
await tell('Page.enable')
await tell('Log.enable')
for (const width of [320, 1280]) {
  for (const value of ['light', 'dark']) {
    const mobile = width < 500
    await tell('Emulation.setDeviceMetricsOverride', { width, height: 900, deviceScaleFactor: 1, mobile })
    await tell('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value }] })
    const shown = new Promise(done => { loaded = done })
    await tell('Page.navigate', { url: page })
    await shown
    const { result } = await tell('Runtime.evaluate', { expression: measure })
    console.log(result.value)
  }
}
browser.kill()
