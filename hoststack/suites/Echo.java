// SPDX-License-Identifier: Apache-2.0

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Arrays;
import java.util.Random;

/** A server with a selector that echoes, and clients with a thread each that send octets and compare what comes back. */
public class Echo {
    private static final int CLIENTS = 4;
    private static final int REQUESTS = 200;

    public static void main(String[] arguments) throws IOException {
        ServerSocketChannel listener = ServerSocketChannel.open().bind(new InetSocketAddress("127.0.0.1", 0));
        int port = ((InetSocketAddress) listener.getLocalAddress()).getPort();
        for (int i = 0; i < CLIENTS; i++) {
            int seed = i;
            new Thread(() -> run(port, seed)).start();
        }
        serve(listener);
    }

    private static void serve(ServerSocketChannel listener) throws IOException {
        Selector selector = Selector.open();
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        for (int ended = 0; ended < CLIENTS;) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel made = listener.accept();
                    made.configureBlocking(false);
                    made.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(40000));
                } else if (!echo(key)) {
                    ended++;
                }
            }
            selector.selectedKeys().clear();
        }
    }

    /** Returns false at the end of a connection. */
    private static boolean echo(SelectionKey key) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer octets = (ByteBuffer) key.attachment();
        if (key.isReadable() && channel.read(octets) < 0) {
            channel.close();
            return false;
        }
        octets.flip();
        channel.write(octets);
        octets.compact();
        int reads = octets.hasRemaining() ? SelectionKey.OP_READ : 0;
        int writes = octets.position() > 0 ? SelectionKey.OP_WRITE : 0;
        key.interestOps(reads | writes);
        return true;
    }

    private static void run(int port, int seed) {
        Random random = new Random(seed);
        int total = 0;
        try (Socket socket = new Socket("127.0.0.1", port)) {
            for (int i = 1; i <= REQUESTS; i++) {
                byte[] sent = new byte[i % 10 == 0 ? 300000 : 900];
                random.nextBytes(sent);
                Thread sender = new Thread(() -> send(socket, sent));
                sender.start();
                byte[] received = socket.getInputStream().readNBytes(sent.length);
                sender.join();
                if (!Arrays.equals(sent, received)) {
                    throw new IOException("request " + i + " differs");
                }
                total += sent.length;
            }
            System.out.println("client " + seed + ": passed, " + total + " octets");
        } catch (IOException | InterruptedException error) {
            System.out.println("client " + seed + ": failed: " + error);
        }
    }

    private static void send(Socket socket, byte[] octets) {
        try {
            socket.getOutputStream().write(octets);
        } catch (IOException error) {
            System.out.println("sender failed: " + error);
        }
    }
}
