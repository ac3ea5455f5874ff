// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// writeCredentials writes what the API server is known by, the one token that it
// takes, and a kubeconfig with both. Everybody here is the administrator: who may
// do what is not what is measured.
func (c *ControlPlane) writeCredentials() error {
	certificate, key, err := newCertificate(c.address().Addr().AsSlice())
	if err != nil {
		return err
	}
	_, signer, err := newCertificate(c.address().Addr().AsSlice())
	if err != nil {
		return err
	}
	c.certificate, c.token = certificate, rand.Text()
	for name, text := range map[string][]byte{
		"server.crt": certificate, "server.key": key, "service-account.key": signer,
		"tokens.csv": fmt.Appendf(nil, "%s,admin,admin,%q\n", c.token, "system:masters"),
	} {
		if err := os.WriteFile(c.path(name), text, 0o600); err != nil {
			return err
		}
	}
	config := api.NewConfig()
	config.Clusters["lab"] = &api.Cluster{Server: c.url(), CertificateAuthorityData: certificate}
	config.AuthInfos["admin"] = &api.AuthInfo{Token: c.token}
	config.Contexts["lab"] = &api.Context{Cluster: "lab", AuthInfo: "admin"}
	config.CurrentContext = "lab"
	return clientcmd.WriteToFile(*config, c.Kubeconfig())
}

// newCertificate makes a certificate that signs itself, and its key, both PEM.
func newCertificate(address net.IP) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kube-apiserver"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA:        true, BasicConstraintsValid: true, IPAddresses: []net.IP{address},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), nil
}
