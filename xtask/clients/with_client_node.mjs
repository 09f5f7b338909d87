// The npm package @kubernetes/client-node: objects, watches, an informer, exec, logs, proxies with paths.

import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import * as k8s from '@kubernetes/client-node';

const namespace = process.env.KNARR_NAMESPACE;
const config = new k8s.KubeConfig();
config.loadFromDefault();
const core = config.makeApiClient(k8s.CoreV1Api);

function step(name) {
  console.log(`try: ${name}`);
}

async function eventually(what, ask, limit = 120) {
  for (const end = Date.now() + limit * 1000; ; ) {
    const answer = await ask();
    if (answer) return answer;
    if (Date.now() > end) throw new Error(`${what}: not within ${limit} s`);
    await new Promise((done) => setTimeout(done, 100));
  }
}

function configMap(name, data = {}) {
  return { metadata: { name }, data };
}

function pod(name, container) {
  return {
    metadata: { name, labels: { app: name } },
    spec: {
      containers: [{ name: 'main', image: 'busybox', imagePullPolicy: 'IfNotPresent', ...container }],
      terminationGracePeriodSeconds: 0,
    },
  };
}

function runs(name) {
  return eventually('a running pod', async () => {
    return (await core.readNamespacedPod({ name, namespace })).status.phase === 'Running';
  });
}

async function answered(code, call) {
  await assert.rejects(call, (error) => error instanceof k8s.ApiException && error.code === code);
}

async function objects() {
  step('CRUD');
  const made = await core.createNamespacedConfigMap({ namespace, body: configMap('a', { x: '1' }) });
  made.data.x = '2';
  await core.replaceNamespacedConfigMap({ name: 'a', namespace, body: made });
  await answered(409, core.replaceNamespacedConfigMap({ name: 'a', namespace, body: made }));
  const patched = await core.patchNamespacedConfigMap(
    { name: 'a', namespace, body: { data: { x: null, y: '3' } } },
    k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.MergePatch),
  );
  assert.deepEqual(patched.data, { y: '3' });
  await core.deleteNamespacedConfigMap({ name: 'a', namespace });
  await answered(404, core.readNamespacedConfigMap({ name: 'a', namespace }));

  step('server-side apply');
  const objects = k8s.KubernetesObjectApi.makeApiClient(config);
  const wanted = { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'applied', namespace }, data: { x: '1' } };
  const apply = (manager, force) =>
    objects.patch(wanted, undefined, undefined, manager, force, k8s.PatchStrategy.ServerSideApply);
  await apply('one', false);
  wanted.data.x = '2';
  await answered(409, apply('two', false));
  assert.equal((await apply('two', true)).data.x, '2');
}

async function watches() {
  step('watch');
  const listed = await core.listNamespacedConfigMap({ namespace });
  const seen = [];
  const path = `/api/v1/namespaces/${namespace}/configmaps`;
  const watch = await new k8s.Watch(config).watch(
    path,
    { resourceVersion: listed.metadata.resourceVersion },
    (type, object) => seen.push(`${type} ${object.metadata.name}`),
    () => {},
  );
  await core.createNamespacedConfigMap({ namespace, body: configMap('w') });
  await core.deleteNamespacedConfigMap({ name: 'w', namespace });
  await eventually('two events', () => seen.length === 2);
  assert.deepEqual(seen, ['ADDED w', 'DELETED w']);
  watch.abort();

  step('informer');
  const events = [];
  const informer = k8s.makeInformer(config, path, () => core.listNamespacedConfigMap({ namespace }));
  for (const verb of ['add', 'update', 'delete']) {
    informer.on(verb, (object) => events.push(`${verb} ${object.metadata.name}`));
  }
  await informer.start();
  assert.ok(informer.get('kube-root-ca.crt', namespace));
  const body = await core.createNamespacedConfigMap({ namespace, body: configMap('i') });
  body.data = { x: '1' };
  await core.replaceNamespacedConfigMap({ name: 'i', namespace, body });
  await core.deleteNamespacedConfigMap({ name: 'i', namespace });
  await eventually('three events', () => events.filter((event) => event.endsWith(' i')).length === 3);
  assert.deepEqual(events.filter((event) => event.endsWith(' i')), ['add i', 'update i', 'delete i']);
  await informer.stop();
}

async function exec(name, command, input) {
  const output = new PassThrough();
  let text = '';
  output.on('data', (data) => (text += data));
  const status = await new Promise((done, fail) => {
    new k8s.Exec(config).exec(namespace, name, 'main', command, output, null, input, false, done).catch(fail);
  });
  return { text, status };
}

async function pods() {
  step('pod, exec, logs');
  const command = ['sh', '-c', 'echo begun; sleep 1000'];
  await core.createNamespacedPod({ namespace, body: pod('box', { command }) });
  await runs('box');
  const ended = await exec('box', ['sh', '-c', 'echo hello; exit 3'], null);
  assert.equal(ended.text, 'hello\n');
  assert.equal(ended.status.status, 'Failure');
  assert.ok(ended.status.details.causes.some((cause) => cause.reason === 'ExitCode' && cause.message === '3'));
  const input = new PassThrough();
  input.write('typed\n');
  assert.equal((await exec('box', ['head', '-n', '1'], input)).text, 'typed\n');
  assert.equal(await core.readNamespacedPodLog({ name: 'box', namespace }), 'begun\n');

  step('followed log');
  const followed = new PassThrough();
  const log = await new k8s.Log(config).log(namespace, 'box', 'main', followed, { follow: true });
  assert.equal(String(await new Promise((done) => followed.once('data', done))), 'begun\n');
  log.abort();

  step('proxies with paths');
  await core.createNamespacedPod({ namespace, body: pod('web', { image: 'knarr.local/web:v1' }) });
  await runs('web');
  const page = 'mkdir /usr/share/web/a && echo deep >/usr/share/web/a/b.html';
  assert.equal((await exec('web', ['sh', '-c', page], null)).status.status, 'Success');
  const answer = await core.connectGetNamespacedPodProxyWithPath({ name: 'web', namespace, path: 'a/b.html' });
  assert.equal(answer, 'deep\n');
  const node = (await core.listNode()).items[0].metadata.name;
  const summary = await core.connectGetNodeProxyWithPath({ name: node, path: 'stats/summary' });
  assert.equal(summary.node.nodeName, node);
}

await objects();
await watches();
await pods();
process.exit(0);
