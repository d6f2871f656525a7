// graphile-worker, local queue of 500 and batched completion: on_graphile.mjs DSN bulk|single|drain|start|produce JOBS
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

// Modules are looked up where npm has put them, not beside this file.
const require = createRequire(`${process.env.BENCH_MODULES}/`);
const { Logger, makeWorkerUtils, run, runMigrations } = require("graphile-worker");
const { Pool } = require("pg");

const [dsn, what, count] = process.argv.slice(2);
const jobs = Number(count);
const quiet = { error: console.error, warning() {}, info() {}, debug() {} };
const logger = new Logger(() => (level, message) => quiet[level]?.(message));
const text = "x".repeat(71);
const now = () => Number(process.hrtime.bigint()) / 1e9;
const idleMilliseconds = 500;

const pool = new Pool({ connectionString: dsn, max: 10 });
await runMigrations({ pgPool: pool, logger });
if (what === "bulk" || what === "single" || what === "produce") {
  const utils = await makeWorkerUtils({ pgPool: pool, logger });
  const began = now();
  if (what === "bulk") {
    for (let start = 0; start < jobs; start += 1000) {
      const numbers = Array.from({ length: Math.min(1000, jobs - start) }, (_, i) => start + i);
      await utils.addJobs(numbers.map((number) => ({ identifier: "noop", payload: { number, text } })));
    }
  } else {
    const task = what === "single" ? "noop" : "timed";
    for (let number = 0; number < jobs; number++) {
      if (what === "produce") await sleep(10 + Math.random() * 20);
      await utils.addJob(task, { number, text });
      if (what === "produce") console.log(number, now());
    }
  }
  if (what !== "produce") console.log(JSON.stringify({ seconds: now() - began }));
} else {
  let done = 0;
  let ended = now();
  const start = () => run({
    pgPool: pool,
    noHandleSignals: true,
    logger,
    preset: {
      worker: { concurrentJobs: 24, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 },
    },
    taskList: {
      noop: () => { done++; ended = now(); },
      timed: ({ number }) => console.log(number, now()),
    },
  });
  await pool.query("select 1");
  console.log("ready");
  if (what === "start") {
    await (await start()).promise;
  } else {
    const lines = createInterface({ input: process.stdin });
    await new Promise((resolve) => lines.once("line", resolve));
    lines.close();
    const runner = await start();
    ended = now();
    while (now() - ended < idleMilliseconds / 1000) await sleep(50);
    await runner.stop();
    console.log(JSON.stringify({ done, ended }));
  }
}
await pool.end();
process.exit(0);
