// An OpenID provider on a free port of the loopback interface. It prints "answer: ISSUER", and reads commands from stdin,
// one JSON object a line: {"client": {…}} registers a client, {"rotate": true} replaces the signing key. After each it
// prints "answer: done". It ends when stdin ends.
import { createServer } from "node:http";
import { generateKeyPairSync, randomBytes } from "node:crypto";
import { createInterface } from "node:readline";
import Provider from "oidc-provider";

const cookieKeys = [randomBytes(32).toString("hex")];
const clients = [];
let keys = [];
let current;

function rotate() {
  const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
  keys = [{ ...privateKey.export({ format: "jwk" }), kid: randomBytes(8).toString("hex"), use: "sig", alg: "RS256" }];
}

// Everyone can sign in with any password, and only bob is not in the groups that have roles.
function account(name) {
  return {
    accountId: name,
    claims: () => ({
      sub: name,
      name: `${name[0].toUpperCase()}${name.slice(1)} Example`,
      email: `${name}@example.com`,
      email_verified: true,
      groups: name === "bob" ? ["strangers"] : ["staff", "leads", "admins"],
    }),
  };
}

function make() {
  current = new Provider(issuer, {
    clients,
    jwks: { keys },
    cookies: { keys: cookieKeys },
    claims: { openid: ["sub"], profile: ["name"], email: ["email", "email_verified"], groups: ["groups"] },
    findAccount: (_, login) => account(login),
    pkce: { required: () => true },
    loadExistingGrant: async ({ oidc }) => {
      const grant = new oidc.provider.Grant({ clientId: oidc.client.clientId, accountId: oidc.session.accountId });
      grant.addOIDCScope("openid profile email groups");
      await grant.save();
      return grant;
    },
  }).callback();
}

const server = createServer((request, response) => current(request, response));
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
const issuer = `http://localhost:${server.address().port}`;
rotate();
make();
console.log(`answer: ${issuer}`);

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  if (command.client) clients.push(command.client);
  if (command.rotate) rotate();
  make();
  console.log("answer: done");
}
process.exit(0);
