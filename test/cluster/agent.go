// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// UserAgent is the service account of Beeline's agents; [Cluster.Kubeconfig] has a file for it, too.
const UserAgent = "beeline"

// agentRules are the permissions of Beeline's agent.
var agentRules = []rbacv1.PolicyRule{
	reading("", "services", "nodes", "pods", "namespaces"),
	reading("discovery.k8s.io", "endpointslices"),
	reading("networking.k8s.io", "servicecidrs"),
	reading("node.k8s.io", "runtimeclasses"),
	{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create"}},
}

func reading(group string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{"get", "list", "watch"}}
}

// NewAgent prepares a Beeline agent that follows the cluster on a node.
func (c *Cluster) NewAgent(program string, host *lab.Host) *node.Agent {
	return &node.Agent{Host: host, Program: program, Kubeconfig: c.Kubeconfig(UserAgent)}
}

// createAgentAccount creates the service account of Beeline's agents, as in a real cluster, and writes its
// kubeconfig.
func (c *Cluster) createAgentAccount(ctx context.Context) error {
	const namespace, name = metav1.NamespaceSystem, UserAgent
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if _, err := c.Client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the agent's ServiceAccount: %w", err)
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: agentRules}
	if _, err := c.Client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the agent's ClusterRole: %w", err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}
	if _, err := c.Client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the agent's ClusterRoleBinding: %w", err)
	}
	request, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("requesting the agent's token: %w", err)
	}
	return c.WriteKubeconfig(UserAgent, request.Status.Token)
}
