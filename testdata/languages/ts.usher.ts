interface Contact {
  /** where to answer */
  email: string
  /** what it is about */
  message: string
  /** how many to send */
  copies?: number
  _webhook?: { timestamp: number }
}

/**
 * Takes a contact form.
 * @param {integer} [copies]
 */
export function handleContact(form: Contact) {
  if (form._webhook && Date.now() - form._webhook.timestamp > 60_000) throw new Error('the request is too old')
  return { copies: form.copies ?? 1, thanks: form.email }
}

/** Takes a second. */
export async function pause(): Promise<string> {
  await new Promise((resolve) => setTimeout(resolve, 1000))
  return 'done'
}
