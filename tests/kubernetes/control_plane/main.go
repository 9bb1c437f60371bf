// One binary with the servers of a control plane: etcd, apiserver, controller-manager, scheduler.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	_ "time/tzdata"

	etcdmain "go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	servers := map[string]func() *cobra.Command{
		"apiserver":          apiserver.NewAPIServerCommand,
		"controller-manager": manager.NewControllerManagerCommand,
		"scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
	which := ""
	if len(os.Args) > 1 {
		which = os.Args[1]
		os.Args = append([]string{"kube-" + which}, os.Args[2:]...)
	}
	if which == "etcd" {
		etcdmain.Main(append([]string{which}, os.Args[1:]...))
		return
	}
	server, known := servers[which]
	if !known {
		fmt.Fprintln(os.Stderr, "usage: control_plane etcd|apiserver|controller-manager|scheduler [flags]")
		os.Exit(2)
	}
	os.Exit(cli.Run(server()))
}
