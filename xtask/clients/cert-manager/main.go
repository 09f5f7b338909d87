// The Go module github.com/cert-manager/cert-manager: its controllers for the issuers without external services, its
// webhook and its CA injector. Its own commands are separate modules, which no registry has.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	webhookconfig "github.com/cert-manager/cert-manager/internal/apis/config/webhook"
	"github.com/cert-manager/cert-manager/internal/webhook"
	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	"github.com/cert-manager/cert-manager/pkg/util"
	"github.com/cert-manager/cert-manager/pkg/webhook/options"

	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificatesigningrequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

var (
	namespace  = os.Getenv("KNARR_NAMESPACE")
	kubeconfig = os.Getenv("KUBECONFIG")
)

func main() {
	ctrl.SetLogger(klog.Background())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	parts := map[string]func(context.Context) error{"controller": controllers, "cainjector": injector, "webhook": serve}
	if len(os.Args) < 2 || parts[os.Args[1]] == nil {
		fmt.Println("controller, cainjector or webhook PORT")
		os.Exit(2)
	}
	if err := parts[os.Args[1]](ctx); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// controllers runs all controllers that the packages above register.
func controllers(ctx context.Context) error {
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:         kubeconfig,
		KubernetesAPIQPS:   50,
		KubernetesAPIBurst: 100,
		IssuerOptions:      controller.IssuerOptions{ClusterResourceNamespace: namespace},
		CertificateOptions: controller.CertificateOptions{
			CertificateRequestMinimumBackoffDuration: time.Hour,
			CertificateRequestMaximumBackoffDuration: 32 * time.Hour,
		},
	})
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	for name, construct := range controller.Known() {
		made, err := construct(factory)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		running.Go(func() {
			if err := made.Run(2, ctx); err != nil {
				fmt.Println(name, err)
			}
		})
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	shared.HTTP01ResourceMetadataInformersFactory.Start(ctx.Done())
	running.Wait()
	return nil
}

// injector updates the CA bundles of objects with its annotation.
func injector(ctx context.Context) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, admissionregistration.AddToScheme, apiextensions.AddToScheme, apiregistration.AddToScheme,
		certmanager.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	// The field manager of its applies.
	config := util.RestConfigWithUserAgent(ctrl.GetConfigOrDie(), "cainjector")
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Metrics:                       server.Options{BindAddress: "0"},
		LeaderElection:                true,
		LeaderElectionID:              "cert-manager-cainjector-leader-election",
		LeaderElectionNamespace:       namespace,
		LeaderElectionReleaseOnCancel: true,
		Client:                        client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
	})
	if err != nil {
		return err
	}
	err = cainjector.RegisterAllInjectors(ctx, manager, cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor: map[string]bool{
			cainjector.MutatingWebhookConfigurationName:   true,
			cainjector.ValidatingWebhookConfigurationName: true,
			cainjector.APIServiceName:                     true,
			cainjector.CustomResourceDefinitionName:       true,
		},
	})
	if err != nil {
		return err
	}
	return manager.Start(ctx)
}

// serve runs the webhook on a port of localhost; the CA of its certificate is in a Secret.
func serve(ctx context.Context) error {
	config, err := options.NewWebhookConfiguration()
	if err != nil {
		return err
	}
	if err := settle(config); err != nil {
		return err
	}
	made, err := webhook.NewCertManagerWebhookServer(klog.Background(), *config)
	if err != nil {
		return err
	}
	return made.Run(ctx)
}

func settle(config *webhookconfig.WebhookConfiguration) error {
	if len(os.Args) < 3 {
		return fmt.Errorf("webhook PORT")
	}
	port, err := strconv.ParseInt(os.Args[2], 10, 32)
	if err != nil {
		return err
	}
	config.SecurePort = int32(port)
	config.HealthzPort = 0
	config.MetricsListenAddress = "0"
	config.KubeConfig = kubeconfig
	config.TLSConfig.Dynamic.SecretNamespace = namespace
	config.TLSConfig.Dynamic.SecretName = "cert-manager-webhook-ca"
	config.TLSConfig.Dynamic.DNSNames = []string{"localhost"}
	return nil
}
