// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// ask answers one question of a client that accepts datagrams of a size, 0 if it does not know EDNS.
func (s *nameServer) ask(t *testing.T, name string, kind dnsmessage.Type, class dnsmessage.Class, size int, udp bool) dnsmessage.Message {
	t.Helper()
	q := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: class}},
	}
	if size > 0 {
		opt := dnsmessage.Resource{Body: &dnsmessage.OPTResource{}}
		if err := opt.Header.SetEDNS0(size, dnsmessage.RCodeSuccess, false); err != nil {
			t.Fatal(err)
		}
		q.Additionals = append(q.Additionals, opt)
	}
	request, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	limit := plainSize
	if !udp {
		limit = 65535
	}
	message, err := s.answer(request, limit, udp)
	var reply dnsmessage.Message
	if err == nil {
		err = reply.Unpack(message)
	}
	if err != nil {
		t.Fatal(err)
	}
	if reply.ID != 7 || !reply.Response || len(reply.Additionals) != len(q.Additionals) {
		t.Errorf("%s: the answer's header is %v with %d additional records", name, reply.Header, len(reply.Additionals))
	}
	return reply
}

func TestNameServer(t *testing.T) {
	s := &nameServer{pod: "b1", DNSOptions: DNSOptions{Names: map[string][]netip.Addr{
		"web.test": {netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		"v4.test":  {netip.MustParseAddr("192.0.2.1")},
	}}}
	for i := range 40 {
		s.Names["many.test"] = append(s.Names["many.test"], netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	const in, ch = dnsmessage.ClassINET, dnsmessage.ClassCHAOS
	for _, test := range []struct {
		what    string
		reply   dnsmessage.Message
		answers int
		code    dnsmessage.RCode
		cut     bool
	}{
		{"an IPv4 address", s.ask(t, "web.test.", dnsmessage.TypeA, in, 0, true), 1, dnsmessage.RCodeSuccess, false},
		{"an IPv6 address, in other case", s.ask(t, "Web.Test.", dnsmessage.TypeAAAA, in, 1232, true), 1, dnsmessage.RCodeSuccess, false},
		{"a name without such an address", s.ask(t, "v4.test.", dnsmessage.TypeAAAA, in, 0, true), 0, dnsmessage.RCodeSuccess, false},
		{"no such name", s.ask(t, "nobody.test.", dnsmessage.TypeA, in, 0, true), 0, dnsmessage.RCodeNameError, false},
		{"the pod", s.ask(t, "hostname.bind.", dnsmessage.TypeTXT, ch, 0, true), 1, dnsmessage.RCodeSuccess, false},
		{"too much for a datagram", s.ask(t, "many.test.", dnsmessage.TypeA, in, 0, true), 0, dnsmessage.RCodeSuccess, true},
		{"not too much with EDNS", s.ask(t, "many.test.", dnsmessage.TypeA, in, 1232, true), 40, dnsmessage.RCodeSuccess, false},
		{"everything by TCP", s.ask(t, "many.test.", dnsmessage.TypeA, in, 0, false), 40, dnsmessage.RCodeSuccess, false},
	} {
		got := test.reply
		if len(got.Answers) != test.answers || got.RCode != test.code || got.Truncated != test.cut {
			t.Errorf("%s: %d answers, %v, cut %t; want %d, %v, %t",
				test.what, len(got.Answers), got.RCode, got.Truncated, test.answers, test.code, test.cut)
		}
	}
}
