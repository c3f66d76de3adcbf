'use strict';
// Node before 24 knows of no proxy: here its connections (fetch, http, https) learn of the one in HTTPS_PROXY.
(() => {
  const address = process.env.HTTPS_PROXY || process.env.https_proxy;
  if (!address || process.allowedNodeEnvironmentFlags.has('--use-env-proxy')) return;
  const net = require('net');
  const proxy = new URL(address);
  const excepted = (process.env.NO_PROXY || process.env.no_proxy || '').split(',');
  const isDirect = (host) => !host || net.isIP(host) !== 0 || excepted.includes(host);

  // A socket to host:port by CONNECT, handed to done(error, socket).
  function reach(host, port, done) {
    const socket = net.connect(Number(proxy.port), proxy.hostname);
    let head = Buffer.alloc(0);
    const fail = (error) => { socket.destroy(); done(error); };
    const closed = () => fail(new Error(`the proxy closed the connection to ${host}:${port}`));
    const hear = (data) => {
      head = Buffer.concat([head, data]);
      if (!head.includes('\r\n\r\n')) return;
      socket.off('data', hear).off('error', fail).off('close', closed);
      const line = head.toString('latin1', 0, head.indexOf('\r\n'));
      if (line.split(' ')[1] !== '200') return fail(new Error(line));
      done(null, socket);
    };
    socket.on('connect', () => socket.write(`CONNECT ${host}:${port} HTTP/1.1\r\nHost: ${host}:${port}\r\n\r\n`));
    socket.on('data', hear).on('error', fail).on('close', closed);
  }

  function secure(socket, options, done) {
    const inside = require('tls').connect({ ...options, socket });
    inside.once('secureConnect', () => done(null, inside)).once('error', done);
  }

  for (const [scheme, defaultPort] of [['http', 80], ['https', 443]]) {
    const agent = require(scheme).Agent.prototype;
    const direct = agent.createConnection;
    agent.createConnection = function (options, done) {
      const host = options.host || options.hostname;
      if (options.socketPath || isDirect(host)) return direct.call(this, options, done);
      reach(host, options.port || defaultPort, (error, socket) => {
        if (error || scheme === 'http') return done(error, socket);
        secure(socket, { ...options, servername: options.servername || host }, done);
      });
    };
  }

  // fetch takes its connections from a dispatcher that is made when it is first used.
  const original = globalThis.fetch;
  const key = Symbol.for('undici.globalDispatcher.1');
  let ready = typeof original !== 'function';
  globalThis.fetch = function fetch(...args) {
    if (!ready) {
      ready = true;
      new Headers();
      const Agent = globalThis[key].constructor;
      globalThis[key] = new Agent({
        connect(options, done) {
          const isTls = options.protocol === 'https:';
          const port = Number(options.port) || (isTls ? 443 : 80);
          const opened = (error, socket) => {
            if (error || !isTls) return done(error, socket);
            const servername = options.servername || options.hostname;
            secure(socket, { servername, ALPNProtocols: ['http/1.1'] }, done);
          };
          if (!isDirect(options.hostname)) return reach(options.hostname, port, opened);
          const socket = net.connect(port, options.hostname.replace(/^\[|\]$/g, ''));
          socket.once('connect', () => opened(null, socket)).once('error', opened);
        },
      });
    }
    return original.apply(this, args);
  };
})();
