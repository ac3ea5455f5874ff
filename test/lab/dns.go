// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// DNSOptions configure a small authoritative name server, over UDP and TCP. The zero value means none.
type DNSOptions struct {
	Port uint16 `json:"port"`
	// Names are the A and AAAA records by name, in lower case and without the final dot. Each name's TXT
	// record names the pod, and so does the TXT record of hostname.bind in class CH.
	Names map[string][]netip.Addr `json:"names"`
}

// plainSize is the limit of a UDP reply unless the client allows more (RFC 1035, 4.2.1). Longer ones are
// truncated, and the client repeats the query by TCP.
const plainSize = 512

// nameServer is a host's name server.
type nameServer struct {
	DNSOptions
	pod string
}

// answer returns the reply to a message, of at most limit bytes; by UDP an EDNS client sets the limit itself
// (RFC 6891, 6.2.3).
func (s *nameServer) answer(request []byte, limit int, udp bool) ([]byte, error) {
	var q dnsmessage.Message
	if err := q.Unpack(request); err != nil {
		return nil, fmt.Errorf("unpacking a DNS message: %w", err)
	}
	if q.Response || len(q.Questions) != 1 {
		return nil, errors.New("a DNS message is not one question")
	}
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: q.ID, Response: true, Authoritative: true,
			RecursionDesired: q.RecursionDesired, RecursionAvailable: true,
		},
		Questions: q.Questions,
	}
	for _, extra := range q.Additionals {
		if extra.Header.Type != dnsmessage.TypeOPT {
			continue
		}
		if udp { // the class of an OPT record is a size
			limit = max(limit, int(extra.Header.Class))
		}
		opt := dnsmessage.Resource{Body: &dnsmessage.OPTResource{}}
		if err := opt.Header.SetEDNS0(1232, dnsmessage.RCodeSuccess, false); err != nil {
			return nil, err
		}
		reply.Additionals = append(reply.Additionals, opt)
	}
	records, known := s.records(q.Questions[0])
	reply.Answers = records
	if !known {
		reply.RCode = dnsmessage.RCodeNameError
	}
	message, err := reply.Pack()
	if err == nil && len(message) > limit {
		reply.Truncated, reply.Answers = true, nil
		message, err = reply.Pack()
	}
	return message, err
}

// records returns the records for a question, and whether its name exists.
func (s *nameServer) records(q dnsmessage.Question) (all []dnsmessage.Resource, known bool) {
	header := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1}
	pod := dnsmessage.Resource{Header: header, Body: &dnsmessage.TXTResource{TXT: []string{s.pod}}}
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	if q.Class == dnsmessage.ClassCHAOS {
		return []dnsmessage.Resource{pod}, name == "hostname.bind"
	}
	addresses, known := s.Names[name]
	if known && q.Type == dnsmessage.TypeTXT {
		return []dnsmessage.Resource{pod}, true
	}
	for _, a := range addresses {
		switch {
		case q.Type == dnsmessage.TypeA && a.Is4():
			all = append(all, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: a.As4()}})
		case q.Type == dnsmessage.TypeAAAA && a.Is6():
			all = append(all, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	return all, known
}

// serveStreams serves TCP: each message follows its length (RFC 1035, 4.2.2).
func (s *nameServer) serveStreams(l net.Listener) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "accept:", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		go func() {
			defer conn.Close()
			if err := s.serveStream(conn); !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, "answering DNS by TCP:", err)
			}
		}()
	}
}

// serveStream serves until the client closes the connection, which is io.EOF.
func (s *nameServer) serveStream(conn net.Conn) error {
	for {
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return err
		}
		request := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, request); err != nil {
			return err
		}
		answer, err := s.answer(request, 65535, false)
		if err != nil {
			return err
		}
		answer = append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)
		if _, err := conn.Write(answer); err != nil {
			return err
		}
	}
}
