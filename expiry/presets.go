package expiry

import "time"

// Names of presets, for [Rule.Preset].
const (
	// PresetStripe: API v1 keeps keys for at least 24 hours, then treats them as new.
	// https://docs.stripe.com/api/idempotent_requests
	PresetStripe = "stripe"
	// PresetStripeV2: API v2 keeps keys for 30 days.
	// https://docs.stripe.com/api-v2-overview
	PresetStripeV2 = "stripe-v2"
	// PresetPayPalVault: Payment Method Tokens (vault) v3, 3 hours.
	// https://github.com/paypal/paypal-rest-api-specifications
	PresetPayPalVault = "paypal-vault-v3"
	// PresetPayPalOrders: Orders v2, 6 hours, and up to 72 on request.
	// https://github.com/paypal/paypal-rest-api-specifications
	PresetPayPalOrders = "paypal-orders-v2"
	// PresetPayPalSubscriptions: Subscriptions v1, 72 hours.
	// https://github.com/paypal/paypal-rest-api-specifications
	PresetPayPalSubscriptions = "paypal-subscriptions-v1"
	// PresetPayPalPayouts: Payouts v1, 30 days, which is also Payments v1's.
	// https://github.com/paypal/paypal-rest-api-specifications
	PresetPayPalPayouts = "paypal-payouts-v1"
	// PresetPayPalPayments: Payments v2, 45 days.
	// https://github.com/paypal/paypal-rest-api-specifications
	PresetPayPalPayments = "paypal-payments-v2"
	// PresetSQSFIFO: a FIFO queue drops what is sent again within 5 minutes. It says
	// nothing about what the queue delivers again: a consumer's horizon is how long
	// messages may lie in the queue and its dead-letter queue, up to 14 days each;
	// give it as QueueRedrive.
	// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/using-messagededuplicationid-property.html
	PresetSQSFIFO = "sqs-fifo"
	// PresetGitHubWebhook: deliveries of the past 3 days can be sent again. The fourth
	// day is for what is asked for in the last minute and arrives after it.
	// https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks
	PresetGitHubWebhook = "github-webhook"
)

// Preset is the windows of a well-known provider: a starting point. They say what
// the provider promises, not what your own clients, queues and operators need; give
// those as horizons of the rule.
type Preset struct {
	Name          string
	Replay, Dedup time.Duration
	Horizons      Horizons
	Source        string // where the provider says so
}

// Presets returns all presets. The caller may keep and change the result.
func Presets() []Preset {
	const (
		day    = 24 * time.Hour
		paypal = "https://github.com/paypal/paypal-rest-api-specifications"
	)
	both := func(name string, d time.Duration, source string) Preset {
		return Preset{Name: name, Replay: d, Dedup: d, Source: source}
	}
	return []Preset{
		both(PresetStripe, day, "https://docs.stripe.com/api/idempotent_requests"),
		both(PresetStripeV2, 30*day, "https://docs.stripe.com/api-v2-overview"),
		both(PresetPayPalVault, 3*time.Hour, paypal),
		both(PresetPayPalOrders, 6*time.Hour, paypal),
		both(PresetPayPalSubscriptions, 72*time.Hour, paypal),
		both(PresetPayPalPayouts, 30*day, paypal),
		both(PresetPayPalPayments, 45*day, paypal),
		both(PresetSQSFIFO, 5*time.Minute, "https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/using-messagededuplicationid-property.html"),
		{
			Name: PresetGitHubWebhook, Replay: day, Dedup: 4 * day, Horizons: Horizons{WebhookReplay: 3 * day},
			Source: "https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks",
		},
	}
}

func presetNamed(name string) (Preset, bool) {
	for _, p := range Presets() {
		if p.Name == name {
			return p, true
		}
	}
	return Preset{}, false
}

func presetNames() (names []string) {
	for _, p := range Presets() {
		names = append(names, p.Name)
	}
	return names
}
