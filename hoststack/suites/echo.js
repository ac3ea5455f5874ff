// SPDX-License-Identifier: Apache-2.0

// A server that echoes, and four clients that send octets and compare what comes back. It opens files meanwhile, whose
// descriptors have the numbers of closed connections.
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const net = require('net');

const REQUESTS = 400;
const CLIENTS = 4;

// Client sends random octets, and the next ones when all have come back.
class Client {
  constructor(port, name, ended) {
    this.name = name;
    this.requests = this.total = 0;
    this.socket = net.connect(port, '127.0.0.1');
    this.socket.on('connect', () => this.send());
    this.socket.on('data', (octets) => this.receive(octets));
    this.socket.on('close', () => {
      console.log(`client ${this.name}: passed, ${this.total} octets`);
      ended();
    });
  }

  send() {
    if (this.requests++ === REQUESTS) {
      this.socket.end();
      return;
    }
    this.sent = crypto.randomBytes(1 + (this.requests % 10 === 0 ? 300000 : 900));
    this.received = [];
    this.missing = this.sent.length;
    this.socket.write(this.sent);
  }

  receive(octets) {
    this.received.push(octets);
    this.missing -= octets.length;
    if (this.missing > 0) {
      return;
    }
    if (!Buffer.concat(this.received).equals(this.sent)) {
      throw new Error(`client ${this.name}: request ${this.requests} differs`);
    }
    this.total += this.sent.length;
    fs.readFileSync('/proc/self/stat');
    this.send();
  }
}

const server = net.createServer((socket) => socket.pipe(socket));
server.listen(0, '127.0.0.1', () => {
  let open = CLIENTS;
  for (let i = 0; i < CLIENTS; i++) {
    new Client(server.address().port, i, () => --open === 0 && server.close());
  }
});
