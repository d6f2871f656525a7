// pg-boss, fetching and completing 500 at a time: on_pgboss.mjs DSN bulk|single|drain JOBS
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

// Modules are looked up where npm has put them, not beside this file.
const require = createRequire(`${process.env.BENCH_MODULES}/`);
const { PgBoss } = await import(pathToFileURL(require.resolve("pg-boss")).href);

const [dsn, what, count] = process.argv.slice(2);
const jobs = Number(count);
const text = "x".repeat(71);
const now = () => Number(process.hrtime.bigint()) / 1e9;
const batchSize = 500;

const boss = new PgBoss({ connectionString: dsn, supervise: false, schedule: false });
boss.on("error", console.error);
await boss.start();
await boss.createQueue("noop");
if (what === "drain") {
  console.log("ready");
  const lines = createInterface({ input: process.stdin });
  await new Promise((resolve) => lines.once("line", resolve));
  lines.close();
  let done = 0;
  for (;;) {
    const found = await boss.fetch("noop", { batchSize });
    if (found.length === 0) break;
    await boss.complete("noop", found.map((job) => job.id));
    done += found.length;
  }
  console.log(JSON.stringify({ done, ended: now() }));
} else {
  const began = now();
  if (what === "bulk") {
    for (let start = 0; start < jobs; start += 1000) {
      const numbers = Array.from({ length: Math.min(1000, jobs - start) }, (_, i) => start + i);
      await boss.insert("noop", numbers.map((number) => ({ data: { number, text } })));
    }
  } else {
    for (let number = 0; number < jobs; number++) await boss.send("noop", { number, text });
  }
  console.log(JSON.stringify({ seconds: now() - began }));
}
await boss.stop({ graceful: false });
process.exit(0);
