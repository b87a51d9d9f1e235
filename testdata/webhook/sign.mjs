// Signs a body with a provider's own library: reads {scheme, key, body, unix}
// from stdin and prints the headers, as "Name: value", for the test to send. It
// is run in the folder that has the packages.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.cwd() + "/");
const { scheme, key, body, unix } = JSON.parse(readFileSync(0, "utf8"));

const sign = {
  stripe() {
    const Stripe = require("stripe");
    const stripe = new (Stripe.default ?? Stripe)("sk_test_none");
    return ["Stripe-Signature: " + stripe.webhooks.generateTestHeaderString({ payload: body, secret: key, timestamp: unix })];
  },
  standard() {
    const { Webhook } = require("standardwebhooks");
    return [
      "webhook-id: msg_1",
      `webhook-timestamp: ${unix}`,
      "webhook-signature: " + new Webhook(key).sign("msg_1", new Date(unix * 1000), body),
    ];
  },
};

process.stdout.write(JSON.stringify(sign[scheme]()));
